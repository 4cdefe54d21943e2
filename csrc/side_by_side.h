// Planes side by side: the engine transposes a group of planes, so that corresponding elements of the planes
// become adjacent, pools them as a channels-last array with another engine, and transposes the result back. Short
// rows, windows of any kind and reductions without a loop along a row thus run on full vectors, forward and
// backward. kernels.cpp decides when it is faster. Without this engine max pooling 3 x 3 with stride 1 of 28 x 28
// bfloat16 (Inception) takes 4.4 times as long, 4 x 4 x 4 with stride 2 of volumes of 40 x 30 x 20 floats 7.7
// times, 2 x 2 x 2 of volumes of 8 x 11 x 8 floats 4 times.
#pragma once

#include "forward/general.h"
#include "kernels.h"
#include "simd.h"

namespace ndpool {
namespace {

// An array of a problem, and the member of the inner problem that holds its transpose.
struct Transposed {
  const Array* from;
  Array Problem::* to;
  int64_t item;
  Over over;
  bool read, written;
};

// The elements of a plane as `count` runs of `length` elements; `step`: bytes between two elements of a run.
class Runs {
public:
  Runs(const Problem& p, const Array& array, int64_t item, Over over) {
    int a = p.n_axes - 1;
    length = extent(p.axes[a], over);
    contiguous = length == 1 || array.pooled[a] == item;
    step = array.pooled[a];
    while (contiguous && --a >= 0 && (extent(p.axes[a], over) == 1 || array.pooled[a] == length * item))
      length *= extent(p.axes[a], over);
    if (!contiguous) --a;
    for (; a >= 0; --a) {
      sizes_[n_outer_] = extent(p.axes[a], over);
      steps_[n_outer_++] = array.pooled[a];
    }
    for (int k = 0; k < n_outer_; ++k) count *= sizes_[k];
  }

  // Distance from the start of a plane to the start of its run r, in bytes.
  int64_t at(int64_t r) const {
    int64_t offset = 0;
    for (int k = 0; k < n_outer_; ++k) {
      offset += r % sizes_[k] * steps_[k];
      r /= sizes_[k];
    }
    return offset;
  }

  int64_t count = 1, length, step;
  bool contiguous;  // within a run

private:
  int n_outer_ = 0;
  int64_t sizes_[max_axes], steps_[max_axes];
};

// The side of the square blocks that are transposed in registers: the lanes of a vector, at most 16.
template <class T> constexpr int block_lanes = min(16, wide<T>);

template <class T, int B> __attribute__((always_inline)) inline void transpose(Vec<T, B> (&rows)[B]) {
  for (int m = 1; m < B; m *= 2) {
    Vec<T, B> zipped[B];
    for (int k = 0; k < B / 2; ++k) {
      zipped[2 * k] = zip_lo(rows[k], rows[k + B / 2]);
      zipped[2 * k + 1] = zip_hi(rows[k], rows[k + B / 2]);
    }
    for (int k = 0; k < B; ++k) rows[k] = zipped[k];
  }
}

// The square of a float or of each float of a vector; other elements are copied.
template <class T, class V> inline V squared(V v) {
  if constexpr (is_real<T>)
    return v * v;
  else
    return v;
}

// Transposes runs of n elements of `lanes` planes (a multiple of B) to n rows of `lanes` elements, squaring
// floats.
template <class T, int B> void gather_run(const char* const* plane, int64_t lanes, int64_t at, int64_t n,
                                          int64_t step, T* to, const Readable& readable) {
  for (int64_t l = 0; l < lanes; l += B) {
    bool vectors = step == sizeof(T);
    for (int k = 0; k < B && n < B; ++k)
      vectors &= readable.contains(reinterpret_cast<const T*>(plane[l + k] + at), B);
    for (int64_t j = 0; vectors && j < n; j += B) {
      const int64_t first = n < B ? 0 : min(j, n - B);
      Vec<T, B> rows[B];
      for (int k = 0; k < B; ++k) rows[k] = read<T, B>(reinterpret_cast<const T*>(plane[l + k] + at) + first);
      transpose<T, B>(rows);
      const int count = int(min(B, n - first));
      for (int k = 0; k < count; ++k) write(to + (first + k) * lanes + l, squared<T>(rows[k]));
    }
    if (vectors) continue;
    for (int k = 0; k < B; ++k)
      for (int64_t j = 0; j < n; ++j)
        to[j * lanes + l + k] = squared<T>(*reinterpret_cast<const T*>(plane[l + k] + at + j * step));
  }
}

// Transposes n rows of `lanes` elements back to runs of `planes` planes, at most `lanes`.
template <class T, int B> void scatter_run(const T* from, int64_t lanes, char* const* plane, int64_t planes,
                                           int64_t at, int64_t n, int64_t step) {
  for (int64_t l = 0; l < planes; l += B) {
    const int count = int(min(B, planes - l));
    const bool vectors = step == sizeof(T) && n >= B;
    for (int64_t j = 0; vectors && j < n; j += B) {
      const int64_t first = min(j, n - B);
      Vec<T, B> rows[B];
      for (int k = 0; k < B; ++k) rows[k] = read<T, B>(from + (first + k) * lanes + l);
      transpose<T, B>(rows);
      for (int k = 0; k < count; ++k) write(reinterpret_cast<T*>(plane[l + k] + at) + first, rows[k]);
    }
    if (vectors) continue;
    for (int k = 0; k < count; ++k)
      for (int64_t j = 0; j < n; ++j)
        *reinterpret_cast<T*>(plane[l + k] + at + j * step) = from[j * lanes + l + k];
  }
}

template <Over work> struct SideBySide {
  static constexpr const char* engine = "side_by_side";
  // Bytes of a transposed group of planes: for several vectors of planes, above which planes are cut, and at most.
  static constexpr int64_t l2_bytes = 256 * 1024, cut_bytes = 1024 * 1024, max_bytes = 4096 * 1024;
  static constexpr int64_t long_row = 64;  // elements of a piece along the last axis
  static constexpr int max_lanes = 64;

  static int arrays(const Problem& p, Transposed (&list)[4]) {
    int n = 0;
    const bool forward = work == Over::outputs;
    const int64_t x = size_of(p.x_type), y = size_of(p.y_type);
    list[n++] = {&p.x, &Problem::x, x, forward ? Over::inputs : Over::outputs, true, false};
    list[n++] = {&p.y, &Problem::y, y, work, false, true};
    if (p.extra != Extra::none)
      list[n++] = {&p.extra_array, &Problem::extra_array, size_of(p.extra), Over::outputs, !forward, forward};
    if (!forward && p.op == Op::lp) {
      list[n++] = {&p.aux, &Problem::aux, x, Over::outputs, true, false};
      list[n++] = {&p.extra_array, &Problem::extra_array, y, Over::inputs, true, false};
    }
    return n;
  }

  static int64_t plane_bytes(const Problem& p) {
    Transposed list[4];
    int64_t bytes = 0;
    for (int k = arrays(p, list) - 1; k >= 0; --k) bytes += plane_elements(p, list[k].over) * list[k].item;
    return bytes;
  }

  // Planes per group: one per lane of a vector of the compute type; those of several vectors if the group fits in
  // L2 and there are planes enough for every thread.
  static int64_t lanes_of(const Problem& p) {
    const int64_t compute = max(4, max(size_of(p.x_type), size_of(p.y_type)));
    const bool narrow = p.op != Op::sum && p.extra == Extra::none && size_of(p.x_type) < 4;
    int64_t lanes = vector_bytes / (narrow ? (is_integer(p.x_type) ? size_of(p.x_type) : 4) : compute);
    lanes = max(lanes, 8);
    const int64_t plane = plane_bytes(p);
    const int64_t groups = p.threads > 1 ? 2 * p.threads : 1;
    while (lanes < max_lanes && 2 * lanes * groups <= p.planes && 2 * lanes * plane <= l2_bytes) lanes *= 2;
    return lanes;
  }

  // The pieces into which planes are cut along one axis, so that a group fits in L2 and every thread has a piece.
  struct Cut {
    int axis;
    int64_t pieces;
  };

  // What two pieces share is transposed twice, so a piece is several times as long; the axis is the one that allows most
  // pieces. A piece must round as the plane does: windows with different divisors stay whole and, backward, no piece is
  // so short that fewer windows overlap there.
  static Cut cut_of(const Problem& p, int64_t lanes) {
    Cut best{0, 1};
    if (p.divide && !common_divisor(p)) return best;
    const int64_t groups = ceil_div(p.planes, lanes),
                  wanted = max(ceil_div(lanes * plane_bytes(p), cut_bytes), ceil_div(p.threads, groups));
    for (int a = 0; a < (p.extra == Extra::index64 ? 1 : p.n_axes) && best.pieces < wanted; ++a) {
      const Axis& axis = p.axes[a];
      const int64_t overlap = max(0, span_of(axis) - axis.stride),
                    unit = work == Over::outputs ? axis.stride : 1;
      const int64_t shared = work == Over::outputs ? (p.threads > groups ? 2 : 4) * overlap
                             : overlap             ? 2 * span_of(axis) + axis.stride
                                                   : 1;
      const int64_t shortest = ceil_div(max(a + 1 == p.n_axes ? long_row : 1, shared), unit);
      const int64_t pieces = axis.regular() ? min(wanted, extent(axis, work) / shortest) : 1;
      if (pieces > best.pieces) best = {a, pieces};
    }
    return best;
  }

  static bool supports(const Problem& p) {
    if (p.channels != 1) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (p.axes[a].table_stride) return false;
    const int64_t lanes = lanes_of(p);
    return (2 * p.planes >= lanes || few_planes_pay(p)) && lanes * plane_bytes(p) <= max_bytes;
  }

  // Lanes without a plane cost as much as others: planes that fill less than half of the lanes pay only if rows
  // are short. Rows may be longer for max pooling, and longest with indices, which are slowest along a row.
  static bool few_planes_pay(const Problem& p) {
    const bool forward = work == Over::outputs;
    const int64_t row = p.axes[p.n_axes - 1].size, row_per_plane = !forward || p.op == Op::sum ? 4
                                                                   : p.extra == Extra::none    ? 8
                                                                                               : 12;
    return p.planes >= (forward ? 3 : 4) && p.planes * row_per_plane >= row;
  }

  // A unit is a piece of a group of planes.
  static void prepare(Problem& p) {
    p.tile = lanes_of(p);
    const Cut cut = cut_of(p, p.tile);
    p.tiles = cut.pieces;
    p.units = ceil_div(p.planes, p.tile) * p.tiles;
    p.scratch = 0;
    for (int64_t k = 0; k < p.tiles; ++k) {
      const Problem part = part_of(p, cut.axis, piece(p, cut.axis, k));
      Problem inner = inner_problem(part);
      inner_kernel(inner).prepare(inner);
      p.scratch = max(p.scratch, inner.scratch + 64 + transposed_bytes(part));
    }
  }

  static int64_t transposed_bytes(const Problem& part) {
    Transposed list[4];
    int64_t bytes = 0;
    for (int k = arrays(part, list) - 1; k >= 0; --k)
      bytes += Scratch::bytes<char>(plane_elements(part, list[k].over) * part.tile * list[k].item);
    return bytes;
  }

  // Piece k along the axis that is cut.
  static Part piece(const Problem& p, int cut, int64_t k) {
    const Axis& axis = p.axes[cut];
    if (p.tiles == 1) return {{0, axis.size}, {0, axis.out}};
    const int64_t n = extent(axis, work);
    const Range range{k * n / p.tiles, (k + 1) * n / p.tiles};
    return work == Over::outputs ? part_of_outputs(axis, range) : part_of_inputs(axis, range);
  }

  // The problem that pools this piece of every plane.
  static Problem part_of(const Problem& p, int cut, const Part& piece) {
    Problem part = p;
    part.axes[cut] = cropped(p.axes[cut], piece);
    Transposed list[4];
    for (int k = arrays(p, list) - 1; k >= 0; --k)
      (part.*list[k].to).data +=
          (list[k].over == Over::inputs ? piece.inputs : piece.outputs).lo * list[k].from->pooled[cut];
    return part;
  }

  static Kernel inner_kernel(const Problem& inner);

  // Whether Lp pooling is just the root of a sum of squares.
  static bool squares(const Problem& p) {
    if (work != Over::outputs || p.op != Op::lp || p.norm != 2 || p.x_type != p.y_type ||
        p.x_type < Dtype::f32)
      return false;
    int64_t taps = 1;
    for (int a = 0; a < p.n_axes; ++a) taps *= p.axes[a].uncropped;
    return !p.divide || common_divisor(p) == taps;
  }

  static Problem inner_problem(const Problem& p) {
    Problem inner;
    inner.op = squares(p) ? Op::sum : p.op;
    inner.extra = p.extra;
    inner.x_type = p.x_type;
    inner.y_type = p.y_type;
    inner.n_axes = p.n_axes;
    for (int a = 0; a < p.n_axes; ++a) {
      inner.axes[a] = p.axes[a];
      if (a + 1 < p.n_axes) inner.rows *= extent(p.axes[a], work);
    }
    inner.channels = p.tile;
    inner.divisor = p.divisor;
    inner.divide = p.divide && inner.op == p.op;
    inner.norm = p.norm;
    inner.stops = p.stops;
    inner.watch = p.watch;
    Transposed list[4];
    for (int k = arrays(p, list) - 1; k >= 0; --k) {
      Array& array = inner.*list[k].to;
      array.channel = list[k].item;
      int64_t pitch = list[k].item * p.tile;
      for (int a = p.n_axes - 1; a >= 0; --a) {
        array.pooled[a] = pitch;
        pitch *= extent(p.axes[a], list[k].over);
      }
    }
    return inner;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    const int cut = p.tiles == 1 ? 0 : cut_of(p, p.tile).axis;
    for (int64_t unit = begin; unit < end && !p.stopped();) {
      const int64_t stop = p.tiles == 1 ? end : unit + 1;
      const Part part = piece(p, cut, unit % p.tiles);
      groups(part_of(p, cut, part), unit / p.tiles, (stop - 1) / p.tiles + 1, part.inputs.lo, memory);
      unit = stop;
    }
  }

private:
  // Pools the groups [begin, end) of the planes of a piece that begins at row `first_row` of the whole planes.
  static void groups(const Problem& p, int64_t begin, int64_t end, int64_t first_row, char* memory) {
    Scratch scratch(memory);
    const int64_t lanes = p.tile;
    Problem inner = inner_problem(p);
    const Kernel kernel = inner_kernel(inner);
    Transposed list[4];
    const int n = arrays(p, list);
    for (int k = 0; k < n; ++k)
      (inner.*list[k].to).data = scratch.take<char>(plane_elements(p, list[k].over) * lanes * list[k].item);
    kernel.prepare(inner);
    char* inner_scratch = scratch.take<char>(inner.scratch);
    for (int64_t group = begin; group < end; ++group) {
      const int64_t first = group * lanes, planes = min(lanes, p.planes - first);
      for (int k = 0; k < n; ++k)
        if (list[k].read) gather(p, list[k], inner, first, planes);
      kernel.run(inner, 0, inner.units, inner_scratch);
      if (p.stopped()) return;
      if (inner.op != p.op) take_roots(inner);
      if (inner.extra == Extra::index64 && first_row) shift_indices(inner, first_row);
      for (int k = 0; k < n; ++k)
        if (list[k].written) scatter(p, list[k], inner, first, planes);
    }
  }

  // The address of the plane of each lane; lanes without a plane repeat the last one.
  static void locate(const Problem& p, const Array& array, int64_t first, int64_t planes, char** plane) {
    for (int64_t l = 0; l < p.tile; ++l) {
      const int64_t q = first + min(l, planes - 1);
      plane[l] = p.n_lead == 1 ? array.data + q * array.lead[0] : plane_of(p, array, q);
    }
  }

  // Calls f with a value of the width of an element, a float if `floats`, and with the side of the blocks.
  template <class F> static void by_width(int64_t item, int64_t lanes, bool floats, F&& f) {
    const auto call = [&](auto width) {
      constexpr int B = block_lanes<decltype(width)>;
      if (lanes % B == 0)
        f(width, std::integral_constant<int, B>{});
      else
        f(width, std::integral_constant<int, min(B, 8)>{});
    };
    if (floats)
      item == 4 ? call(0.0f) : call(0.0);
    else if (item == 1)
      call(std::uint8_t{});
    else if (item == 2)
      call(std::uint16_t{});
    else if (item == 4)
      call(std::uint32_t{});
    else
      call(std::uint64_t{});
  }

  static void take_roots(const Problem& inner) {
    const int64_t n = plane_elements(inner, Over::outputs) * inner.channels;
    if (inner.y_type == Dtype::f32)
      roots(reinterpret_cast<float*>(inner.y.data), n, 2);
    else
      roots(reinterpret_cast<double*>(inner.y.data), n, 2);
  }

  // Indices into a piece become indices into the plane.
  static void shift_indices(const Problem& inner, int64_t first_row) {
    const int64_t n = plane_elements(inner, Over::outputs) * inner.channels;
    const int64_t before = first_row * (plane_elements(inner) / inner.axes[0].size);
    int64_t* indices = reinterpret_cast<int64_t*>(inner.extra_array.data);
    in_vectors(n, [=](int64_t j) { indices[j] += before; });
  }

  static void gather(const Problem& p, const Transposed& t, const Problem& inner, int64_t first,
                     int64_t planes) {
    char* plane[max_lanes];
    locate(p, *t.from, first, planes, plane);
    const Runs runs(p, *t.from, t.item, t.over);
    const Readable readable(p, *t.from, t.item, t.over);
    const bool squares = inner.op != p.op;
    by_width(t.item, p.tile, squares, [&](auto width, auto block) {
      using T = decltype(width);
      T* at = reinterpret_cast<T*>((inner.*t.to).data);
      for (int64_t r = 0; r < runs.count; ++r, at += runs.length * p.tile)
        gather_run<T, block>(plane, p.tile, runs.at(r), runs.length,
                             runs.contiguous ? int64_t(sizeof(T)) : runs.step, at, readable);
    });
  }

  static void scatter(const Problem& p, const Transposed& t, const Problem& inner, int64_t first,
                      int64_t planes) {
    char* plane[max_lanes];
    locate(p, *t.from, first, planes, plane);
    const Runs runs(p, *t.from, t.item, t.over);
    const char* from = (inner.*t.to).data;
    if (plane_elements(p, t.over) == 1 && p.n_lead == 1 && t.from->lead[0] == t.item) {
      __builtin_memcpy(plane[0], from, size_t(planes * t.item));
      return;
    }
    by_width(t.item, p.tile, false, [&](auto width, auto block) {
      using T = decltype(width);
      const T* at = reinterpret_cast<const T*>(from);
      for (int64_t r = 0; r < runs.count; ++r, at += runs.length * p.tile)
        scatter_run<T, block>(at, p.tile, plane, planes, runs.at(r), runs.length,
                              runs.contiguous ? int64_t(sizeof(T)) : runs.step);
    });
  }
};

}  // namespace
}  // namespace ndpool
