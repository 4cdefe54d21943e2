"""Tuning constants of the GPU kernels, all measured on an H200. Launchers read them from here.

They choose kernels and block shapes, never results.
"""

# Threads and lanes.
THREADS = 128  # of most programs
SATURATED = 2**20  # lanes that fill a large device
FEW_LANES = 2**16  # too few to fill it
PROGRAMS = 2112  # that fill a large device
SHORT_LANES = 8  # of a row, up to which lanes are numbered by rows, too; a quarter for any windows backward

# Strips.
UNROLLED = 160  # loads of a fully unrolled strip of one plane
FEW_OUTPUTS = 2**21  # below which channels-last windows of stride 2 and more are computed row by row
WALK_ROWS = (4, 12), (4, 5)  # of windows of stride 1 for which lanes walk down the rows; of aligned rows
WALK_FEW = 2**14  # lanes that do not fill the device
WALK_STEP = 8, 4  # rows at a time
WALK_LANES = 2**19  # that fill the device
WALK_KEPT = 96  # registers of rows that later windows need
COMPILED = 64, 200  # loads, and columns and offsets, of an unrolled strip; more take too long to compile
FUSED_TAPS = 24  # taps up to which one kernel computes a window directly
NORM_TAPS = 256  # likewise, of norms: more are left to powers, an average and roots
NORM_PASSES = 4  # strides by which windows of a norm overlap, from which its axes are pooled one by one

# Segments of contiguous rows.
VECTOR_TAPS = 65  # taps of a regular window from which segments are faster than strips
LONG_ROW = 64  # taps of a window's row from which more threads share it

# Large windows in several passes.
MANY_TAPS = 256  # from which windows are cut
DEEP_TAPS = 64  # windows of a volume that contain one element, from which the last axis is pooled first
PIECE = 2**14  # elements that one program reduces faster than more programs can be started
SHORT = 2**20  # elements up to which one kernel adds medium windows sooner than a second kernel starts

# Whole planes.
PLANE_LANES = 16, 64, 256  # threads that share a plane of more elements
SMALL_PLANE = 64  # elements up to which every size has a kernel of its own
CUT_PLANES = 264  # more large planes fill the device without being cut into pieces
LARGE_PLANE = 2**12  # elements from which planes are read in a loop; also of a piece of a plane
LOOP_LANES = 256  # threads that share such a plane
CHANNEL_ROW = 128  # bytes of neighbouring channels that a program reads side by side

# Gradients by blocks.
REGISTERS = 80, 100  # outputs and offsets that a lane keeps: of several rows, and of one
BLOCK_STORES = 64  # elements that a lane writes
VOLUME_STORES = 32  # likewise of several rows of a volume: more take too long to compile
FEW_BLOCKS = 2**15  # lanes of a norm below which each writes one row of blocks
LARGE_RESULT = 2**24  # elements from which lanes of disjoint channels-last windows write one row each

# Gradients of max pooling, scattered into zeros.
SPARSE_SHORT = 4  # likewise of rows of few elements and an odd stride
SPARSE = 16  # inputs per output from which this pays; a half or a quarter where gathers are slow
SHARED = 32  # windows that contain one input, up to which this pays where gathers are slow; else a quarter
VISITS = 64  # likewise where only a gather input by input remains
SCATTER_WORK = 2  # windows per input that it visits, up to which this pays in volumes with larger overlaps
SHORT_ROW = 256  # bytes of a row
ZEROS = 2**16  # bytes of a plane that one program fills with zeros
FEW_PLANES = 512  # too few to fill the device
FEW_ZEROS = 2**13  # likewise, of few planes

# Gradients of max pooling with large overlapping windows, by scans of contiguous rows, or by walks.
SCAN_OVERLAP = 30  # windows that contain one input, from which this pays
WALK_OVERLAP = 25  # likewise in channels-last arrays
WALK_UNBLOCKED = 9  # likewise where blocks would be too large
SCAN_TAGS = 254  # rows of a window that one byte can number
SCAN_COLUMNS = 128  # outputs of a row that a warp scans
WALK_AHEAD = 8  # outputs that a lane loads ahead
WALK_COLUMNS = 2**17  # lanes that fill the device
WALK_SCRATCH = 2**24  # bytes of sums that stay in the cache from one axis to the next

# Gradients of max pooling with overlapping windows, by columns.
COLUMN_OVERLAP = 8, 9  # windows that contain one input, from which this pays: with stride 1, and otherwise
COLUMN_EACH = 2  # likewise along each axis
COLUMN_STRIDED = 16  # likewise with an even stride in contiguous rows
COLUMN_ROWS = (7, 16), (10, 16)  # windows of a row that contain one input, and rows of a window; aligned rows
COLUMN_CHANNELS = 8, 9  # likewise in channels-last arrays
COLUMN_DEEP = 25, 16  # windows of a row and of the same rows of a volume; channels-last
COLUMN_VECTOR = 4  # columns or channels of a lane
COLUMN_VOLUME = 4  # windows of a volume and stride 2 that contain an input, on average
COLUMN_SUMS = 60  # that a lane keeps
COLUMN_AHEAD = 30  # outputs of a volume that it loads at a time, before it takes fewer channels
COLUMN_REGISTERS = 80  # sums, outputs and offsets of a lane that takes more planes than it must
COLUMN_LANES = 2**18  # that fill the device
COLUMN_FEW = 2**15  # too few, which take fewer channels each

# Gradients of sums with stride 1: windows from which one axis is summed first.
SUM_PASSES = 14, 20  # of contiguous rows, of half types
SUM_PASSES_SCALED = 10  # of norms
SUM_PASSES_CHANNELS = 8
DIVIDED_OVERLAP = 9, 10  # from which divisors, if windows differ in them, come first; of aligned rows
SUM_OVERLAP = 36  # windows that contain one input, from which this holds for any stride of channels

RUN_ROWS = 2  # rows of a run on average, from which gradients are computed by runs

# Gradients of sums, by regions of inputs that are contained in the same windows.
REGIONS = 32, 256  # of the smallest table, and as many as one byte can number
REGION_WINDOWS = 16  # that contain a region
REGION_PLANES = 128  # fewer do not fill the device
REGION_FEW = 2**12  # elements of a plane and of its table, up to which few planes pay, too
REGION_BLOCK = 512  # vectors at a time

BLOCK = 1024  # elements per program of unpooling
