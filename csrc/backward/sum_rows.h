// The backward of sums and averages, for any window; called from backward/selection.h. The engine divides each row
// of output gradients by the divisors of its windows and spreads it over the columns once; every input row is the
// sum of the spread rows that cover it. Where all windows share one divisor, it usually divides the sums instead.
// So an input adds up along the last axis first, then over the rows in rising order: the same order for all
// threads and tiles.
//
// Special cases: 3 x 3 with stride 1, which stays in registers (without it the gradients of Inception's average
// pooling, (8, 192, 35, 35), take 2.4 times as long); disjoint 2 x 2; and all disjoint windows of channels-last
// arrays (2 x 2 of (2, 32, 224, 53), as between the blocks of DenseNet: 1.3 times). Windows whose rows have stride
// 1, or a single row, add up as one long row (2 x 2 with stride 1 of (8, 192, 17, 17): 1.9 times; 1-D windows of
// (8, 64, 3000): 1.5 times).
#pragma once

#include <numeric>

#include "backward/bands.h"

namespace ndpool {
namespace {

template <class V> class SumBackward {
  static constexpr int N = wide<V>, M = vector_bytes > 16 ? N / 2 : N;  // M: for short rows
  using Vn = Vec<V, N>;
  static constexpr int max_added = 16;           // rows per sum
  static constexpr int64_t max_bytes = 1 << 24;  // of spread rows

  // A vector of inputs that begins f elements into the stride of a window: the window of each element, relative to
  // the first element's, and its tap there; the windows to the beginning of the next vector, and the next f.
  struct Phase {
    Vec<UnsignedLike<V>, N> window, tap;
    int64_t windows, next;
  };

  // Inputs [begin, end) of the last axis that the same n outputs from `first` on cover.
  struct Run {
    int64_t begin, end, first, n;
  };

public:
  static constexpr const char* engine = "sum_backward";

  static void prepare(Problem& p) {
    join_axes(p);
    merge_planes(p);
    add_row_axis(p);
    const Sizes s = sizes(p);
    set_units(p, s.tile);
    p.scratch = s.bytes;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    SumBackward worker(p, walk, memory);
    if (worker.sizes_.lean) return worker.row_by_row(walk, end - begin);
    const int64_t size = worker.rows_.size;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(p.n_axes - 2), h1 = min(size, h0 + end - unit);
      worker.slab(h0, h1, worker.remaining(walk, end - unit));
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
  }

private:
  struct Sizes {
    int64_t tile, ring_rows, row_elements, bytes;  // spread rows of a slab; elements of a padded row
    bool lean;                                     // too many spread rows for scratch
  };

  static Sizes sizes(Problem p) {
    add_row_axis(p);
    const int64_t slabs = count_slabs(p), covers = max_covers(p.axes[p.n_axes - 2], p.planes);
    const Sizes s = sizes(p, slabs, covers);
    if (slabs <= max_slabs && s.bytes <= max_bytes) return s;
    Sizes lean = sizes(p, 1, 1);
    lean.lean = true;
    lean.bytes += RowSet::bytes(p);
    return lean;
  }

  static Sizes sizes(const Problem& p, int64_t slabs, int64_t covers) {
    const Axis &rows = p.axes[p.n_axes - 2], &last = p.axes[p.n_axes - 1];
    const int64_t item = sizeof(V);
    Sizes s{};
    const int64_t longest = max(min(last.size, max(1, 256 / p.channels)),
                                min(last.size, band_bytes / (covers + 1) / (slabs * p.channels * item)));
    s.tile =
        min(longest, ceil_div(ceil_div(last.size, ceil_div(last.size, longest)), N) * N);  // of equal length
    const int64_t width = s.tile * p.channels;
    s.ring_rows = min(max(rows.out, rows.size + (rows.kernel - 1) * rows.step),
                      max(covers, band_bytes / (slabs * width * item)));
    s.row_elements = Columns::max_of(last, s.tile) * p.channels + 2 * N;
    s.bytes = 4 * Scratch::bytes<V>(s.row_elements) +
              Scratch::bytes<V>(slabs * s.ring_rows * (width + N) + N) + Scratch::bytes<V>(width + 2 * N) +
              Scratch::bytes<Run>(s.tile);
    return s;
  }

  SumBackward(const Problem& p, const Walk<Over::inputs>& walk, char* memory)
      : p_(p), walk_(walk), rows_(walk.axis(p.n_axes - 2)), sizes_(sizes(p)), width_(0),
        load_(loader<V>(p.x_type, false)), store_(storer<V>(p.y_type, false)),
        contiguous_(rows_contiguous<V>(p) || single_rows_contiguous(p)),
        readable_(p, p.x, sizeof(V), Over::outputs) {
    Scratch scratch(memory);
    const int64_t width = sizes_.tile * p.channels;
    padded_ = scratch.take<V>(sizes_.row_elements);
    divisors_ = scratch.take<V>(sizes_.row_elements);
    loaded_ = scratch.take<V>(sizes_.row_elements);
    spread_ = scratch.take<V>((sizes_.lean ? 1 : count_slabs(p)) * sizes_.ring_rows * (width + N) + N);
    row_ = scratch.take<V>(width + 2 * N);
    runs_ = scratch.take<Run>(sizes_.tile);
    valid_ = scratch.take<UnsignedLike<V>>(sizes_.row_elements);
    rest_ = scratch.take<char>(0);
    const int64_t by = p.divide ? common_divisor(p) : 1;
    // A common divisor divides the sums; other divisors divide the gradients first.
    uniform_ = by != 0;
    divisor_ = V(by ? by : 1);
    inverse_ = uniform_ ? V(1) / divisor_ : V(1);
    // Where rows of windows are disjoint, there are fewer gradients to divide than sums.
    divides_early_ = uniform_ && count_slabs(p) == 1 && max_covers(rows_, p.planes) == 1;
    copies_ = divides_early_ && p.channels > 1 && stored_as<V>(p.y_type) && p.y.channel == sizeof(V) &&
              p.y.pooled[p.n_axes - 1] == p.channels * int64_t(sizeof(V));
    // Multiplication is cheaper; but where nothing is added up, division gives PyTorch's quotient to the bit.
    multiplies_ =
        !divides_early_ || max_covers(walk.last(), p.planes) > 1 || (by > 0 && (by & (by - 1)) == 0);
    enter_tile();
  }

  // Whether the tiles of planes of one row lie in memory in the order in which they are written.
  static bool single_rows_contiguous(const Problem& p) {
    return p.units == p.planes * p.tiles && stored_as<V>(p.y_type) &&
           is_contiguous(p, p.y, sizeof(V), Over::inputs);
  }

  // A lower bound of the elements that this worker still writes, from the current tile on.
  int64_t remaining(const Walk<Over::inputs>& walk, int64_t units) const {
    const int64_t size = walk.last().size, here = min(size, walk.tile_begin() + p_.tile) - walk.tile_begin();
    const int64_t shortest = size - (p_.tiles - 1) * p_.tile;
    return (here + (units - 1) * shortest) * p_.channels;
  }

  // Sets up all that depends only on the tile and the windows of the last axis.
  void enter_tile() {
    const Axis& last = walk_.last();
    tile_ = walk_.tile_begin();
    columns_ = Columns(last, tile_, walk_.tile_end());
    width_ = (walk_.tile_end() - tile_) * p_.channels;
    std::memset(padded_, 0, size_t(sizes_.row_elements) * sizeof(V));
    if (!uniform_) {
      for (int64_t o = columns_.real_lo, j = 0; o < columns_.real_hi; ++o)
        for (int64_t c = 0; c < p_.channels; ++c) divisors_[j++] = V(max(1, share(last, o)));
      for (int64_t j = (columns_.real_hi - columns_.real_lo) * p_.channels, e = j + N; j < e; ++j)
        divisors_[j] = V(1);
    }
    skip_ = last.step / std::gcd(last.step, last.stride);
    n_runs_ = 0;
    // The kernel of the special cases, if the arrays allow them.
    strip_kernel_ = 0;
    if (Columns::fixed(last) && last.stride > 2)
      for (int64_t f = 0; f < last.stride; ++f) {
        Phase& phase = phases_[f];
        for (int j = 0; j < N; ++j) {
          phase.window[j] = UnsignedLike<V>((f + j) / last.stride);
          phase.tap[j] = UnsignedLike<V>((f + j) % last.stride);
        }
        phase.windows = (f + N) / last.stride;
        phase.next = (f + N) % last.stride;
      }
    if (uniform_ && contiguous_ && p_.channels == 1 && stored_as<V>(p_.x_type) &&
        p_.x.pooled[p_.n_axes - 1] == sizeof(V) && rows_.regular() && last.regular() && rows_.step == 1 &&
        last.step == 1 && rows_.kernel == last.kernel) {
      // This case divides sums, which gives other bits than dividing gradients first.
      if (rows_.stride == 1 && last.stride == 1 && last.kernel == 3 && width_ >= M && !divides_early_)
        strip_kernel_ = 3;
      if (rows_.stride == 2 && last.stride == 2 && last.kernel == 2 && rows_.origin == 0 &&
          last.origin == 0 && last.size == 2 * last.out && rows_.size == 2 * rows_.out)
        strip_kernel_ = 2;
    }
    if (strip_kernel_ == 3)
      in_vectors(sizes_.row_elements, [&](int64_t j) {
        const int64_t o = columns_.first + j;
        valid_[j] = o >= 0 && o < last.out ? ~UnsignedLike<V>(0) : UnsignedLike<V>(0);
      });
    if (Columns::fixed(last) && (last.stride == 1 || p_.channels == 1)) return;
    Cover cover(last, tile_);
    for (int64_t i = tile_; i < walk_.tile_end();) {
      const int64_t length = min(cover.run_length(), walk_.tile_end() - i);
      int64_t first = cover.lo;
      while (first < cover.hi && !cover.has_tap(first)) ++first;
      const int64_t n = skip_ == 1 ? cover.hi - first : ceil_div(cover.hi - first, skip_);
      first -= columns_.first;
      if (n_runs_ && runs_[n_runs_ - 1].n == n && (n == 0 || runs_[n_runs_ - 1].first == first))
        runs_[n_runs_ - 1].end += length;
      else
        runs_[n_runs_++] = {i - tile_, i + length - tile_, first, n};
      i += length;
      cover.next(length);
    }
  }

  // Windows with too many rows for scratch: each input row spreads all rows that cover it.
  void row_by_row(Walk<Over::inputs>& walk, int64_t count) {
    Scratch scratch(rest_);
    RowSet around(p_, scratch);
    for (int64_t unit = 0; unit < count && !p_.stopped(); ++unit, walk.next()) {
      if (walk.tile_begin() != tile_ || walk.last().table_stride) enter_tile();
      around.covers(walk);
      in_vectors(width_, [&](int64_t j) { row_[j] = V(0); });
      for (int64_t r = 0; r < around.count(); ++r, around.next()) {
        Slab slab{0, 0, 0, 1};
        for (int a = 0; a + 2 < p_.n_axes; ++a) {
          slab.grad += around.index()[a] * p_.x.pooled[a];
          slab.share *= share(walk.axis(a), around.index()[a]);
        }
        spread(slab, around.index()[p_.n_axes - 2], spread_);
        in_vectors(width_, [&](int64_t j) { row_[j] += spread_[j]; });
      }
      const V* sums = row_;
      add(&sums, 1, walk.row(p_.y, tile_, walk.tile_end()).data, width_, 0);
    }
  }

  // Input rows [h0, h1) of the walk's slab; from h0 on, this worker writes `room` elements.
  void slab(int64_t h0, int64_t h1, int64_t room) {
    if (walk_.tile_begin() != tile_ || walk_.last().table_stride) enter_tile();
    Slab slabs[max_slabs];
    const int n = slabs_around(p_, walk_, slabs);
    char* y = walk_.plane(p_.y) + tile_ * p_.y.pooled[p_.n_axes - 1];
    for (int a = 0; a + 1 < p_.n_axes; ++a) y += (a + 2 == p_.n_axes ? h0 : walk_.at(a)) * p_.y.pooled[a];
    const int64_t halo = (rows_.kernel - 1) * rows_.step, piece = sizes_.ring_rows - halo;
    if (contiguous_ && rows_.regular() && rows_.stride == 1 && n * rows_.kernel <= max_added &&
        piece >= min(h1 - h0, 2 * rows_.kernel)) {
      V* to = reinterpret_cast<V*>(y);
      if (n == 1 && strip_kernel_ == 3 && readable(slabs[0], h0 - rows_.origin - 2, h1 - 1 - rows_.origin))
        return with_finish([&](auto finish) {
          width_ >= 3 * N ? strip_3x3<N>(slabs[0], h0, h1, to, finish)
                          : strip_3x3<M>(slabs[0], h0, h1, to, finish);
        });
      for (; h0 < h1; h0 += piece, to += piece * width_, room -= piece * width_)
        one_long_row(slabs, n, h0, min(piece, h1 - h0), to, room);
      return;
    }
    if (n == 1 && strip_kernel_ == 2) {
      const int64_t tail_rows = (width_ + N - 1) / width_, qa = ceil_div(h0, 2);
      int64_t qb = min(h1, h0 + room / width_ - tail_rows) / 2;
      while (qa < qb && !readable(slabs[0], qa, qb - 1)) --qb;
      if (qa < qb) {
        const int64_t step = p_.y.pooled[p_.n_axes - 2];
        by_rows(slabs, n, h0, 2 * qa, y, room);
        with_finish([&](auto finish) {
          strip_2x2(slabs[0], qa, qb, reinterpret_cast<V*>(y + (2 * qa - h0) * step), finish);
        });
        return by_rows(slabs, n, 2 * qb, h1, y + (2 * qb - h0) * step, room - (2 * qb - h0) * width_);
      }
    }
    by_rows(slabs, n, h0, h1, y, room);
  }

  const V* grad_row(const Slab& slab, int64_t o) const {
    return reinterpret_cast<const V*>(walk_.plane(p_.x) + slab.grad + o * p_.x.pooled[p_.n_axes - 2]);
  }
  // Whether rows [from, to] may be read in place, including the vectors that extend past their ends.
  bool readable(const Slab& slab, int64_t from, int64_t to) const {
    from = max(from, 0);
    to = min(to, rows_.out - 1);
    const V* first = grad_row(slab, from) + min(0, columns_.first);
    return readable_.contains(first, grad_row(slab, to) + columns_.first + width_ + 2 * N - first);
  }

  // 3 x 3 windows with stride 1: down the rows, a block of columns at a time, in registers.
  template <int Width, class F>
  void strip_3x3(const Slab& slab, int64_t h0, int64_t h1, V* y, F finish) const {
    using Vm = Vec<V, Width>;
    using Um = Vec<UnsignedLike<V>, Width>;
    const int64_t pitch = p_.x.pooled[p_.n_axes - 2] / int64_t(sizeof(V)), out = rows_.out, width = width_;
    const V* grads = grad_row(slab, 0) + columns_.first;
    for (int64_t j = 0;;) {
      const Um left = read<UnsignedLike<V>, Width>(valid_ + j),
               middle = read<UnsignedLike<V>, Width>(valid_ + j + 1),
               right = read<UnsignedLike<V>, Width>(valid_ + j + 2);
      const auto masked = [](const V* at, Um mask) __attribute__((always_inline)) {
        return reinterpret_cast<Vm>(reinterpret_cast<Um>(read<V, Width>(at)) & mask);
      };
      const auto across = [&](int64_t o) __attribute__((always_inline)) {
        if (o < 0 || o >= out) return Vm{};
        const V* at = grads + o * pitch + j;
        return masked(at, left) + masked(at + 1, middle) + masked(at + 2, right);
      };
      int64_t o = h0 - rows_.origin - 2;
      Vm a = across(o), b = across(o + 1);
      o += 2;
      V* to = y + j;
      for (int64_t h = h0; h < h1; ++h, ++o, to += width) {
        const Vm c = across(o);
        write(to, finish(a + b + c));
        a = b;
        b = c;
      }
      if (j + Width >= width) return;
      j = min(j + Width, width - Width);  // the last block may overlap
    }
  }

  // Disjoint 2 x 2 windows.
  template <class F> void strip_2x2(const Slab& slab, int64_t qa, int64_t qb, V* y, F finish) const {
    const int64_t pitch = p_.x.pooled[p_.n_axes - 2] / int64_t(sizeof(V)), width = width_;
    const V* grads = grad_row(slab, qa);
    for (int64_t q = qa; q < qb; ++q, grads += pitch)
      for (int r = 0; r < 2; ++r, y += width)
        for (int64_t j = 0; 2 * j < width; j += N) {
          const Vn v = finish(read<V, N>(grads + j));
          write(y + 2 * j, zip_lo(v, v));
          if (2 * j + N < width) write(y + 2 * j + N, zip_hi(v, v));
        }
  }

  void by_rows(const Slab* slabs, int n, int64_t h0, int64_t h1, char* y, int64_t room) {
    if (h0 >= h1) return;
    const int64_t pitch = width_ + N, y_pitch = p_.y.pooled[p_.n_axes - 2];
    Cover cover(rows_, h0);
    int64_t done = cover.lo;
    for (int64_t h = h0, count; h < h1; h += count, y += count * y_pitch, room -= count * width_) {
      count = min(cover.run_length(), h1 - h);
      if (n == 1 && copy_disjoint(slabs[0], cover, count, y, room)) {
        cover.next(count);
        continue;
      }
      for (done = max(done, cover.lo); done < cover.hi; ++done)
        for (int k = 0; k < n; ++k)
          spread(slabs[k], done, spread_ + (k * sizes_.ring_rows + done % sizes_.ring_rows) * pitch);
      const V* added[max_added];
      int m = 0;
      for (int k = 0; k < n; ++k)
        for (int64_t o = cover.lo; o < cover.hi; ++o) {
          if (!cover.has_tap(o)) continue;
          if (m == max_added) {
            sum(added, m, row_, width_, false);
            added[0] = row_;
            m = 1;
          }
          added[m++] = spread_ + (k * sizes_.ring_rows + o % sizes_.ring_rows) * pitch;
        }
      if (count == 1) {
        add(added, m, y, width_, room);
      } else {
        const bool ready = divides_early_ && m == 1;
        if (!ready) sum(added, m, row_, width_);
        copy(ready ? added[0] : row_, y, y_pitch, count, room);
      }
      cover.next(count);
    }
  }

  // Disjoint channels-last windows: copies each row of gradients to the input rows that its windows cover. False
  // if that is not possible.
  bool copy_disjoint(const Slab& slab, const Cover& cover, int64_t count, char* y, int64_t room) {
    if (!copies_ || !n_runs_ || cover.hi - cover.lo != 1 || !cover.has_tap(cover.lo)) return false;
    if (p_.channels % N && (!contiguous_ || room < count * width_ + N))
      return false;  // vectors reach past the rows
    const V* padded = scaled(slab, cover.lo);
    for (int64_t r = 0; r < count; ++r, y += p_.y.pooled[p_.n_axes - 2])
      copy_runs(padded, reinterpret_cast<V*>(y));
    return true;
  }

  // Writes one row to `count` rows of the input gradient.
  void copy(const V* row, char* y, int64_t pitch, int64_t count, int64_t room) const {
    const Row to{y, p_.y.pooled[p_.n_axes - 1], p_.y.channel, width_ / p_.channels, p_.channels};
    const bool direct = stored_as<V>(p_.y_type) && to.is_contiguous(sizeof(V));
    for (int64_t r = 0; r < count; ++r, y += pitch, room -= width_) {
      V* dst = reinterpret_cast<V*>(y);
      if (contiguous_ && room >= width_ + N)
        for (int64_t j = 0; j < width_; j += N) write(dst + j, read<V, N>(row + j));
      else if (direct)
        std::memcpy(dst, row, size_t(width_) * sizeof(V));
      else
        store_(row, {y, to.stride, to.channel, to.n, to.channels});
    }
  }

  // Where every input row adds rows at the same distances, sums many input rows as one long row.
  void one_long_row(const Slab* slabs, int n, int64_t h, int64_t count, V* y, int64_t room) {
    const int64_t taps = rows_.kernel, step = rows_.step;
    const int64_t from = h - rows_.origin - (taps - 1) * step;
    int64_t done = 0;
    if (divides_early_ && n == 1 && taps == 1)  // nothing to add: spreads directly into the gradient
      for (; done < count && room >= width_ + N; ++done, y += width_, room -= width_)
        spread(slabs[0], from + done, y);
    if (done == count) return;
    const V* added[max_added];
    int m = 0;
    for (int k = 0; k < n; ++k) {
      V* spread_rows = spread_ + k * sizes_.ring_rows * width_;
      for (int64_t o = done; o < count + (taps - 1) * step; ++o)
        spread(slabs[k], from + o, spread_rows + (o - done) * width_);
      for (int64_t t = 0; t < taps; ++t) added[m++] = spread_rows + t * step * width_;
    }
    add(added, m, reinterpret_cast<char*>(y), (count - done) * width_, room);
  }

  // Adds rows and stores their sum in the input gradient.
  void add(const V* const* rows, int n, char* y, int64_t length, int64_t room) {
    const int64_t stride = p_.y.pooled[p_.n_axes - 1];
    const Row to{y, stride, p_.y.channel, length / p_.channels, p_.channels};
    if (contiguous_ || (stored_as<V>(p_.y_type) && to.is_contiguous(sizeof(V)))) {
      V* dst = reinterpret_cast<V*>(y);
      if (contiguous_ && whole_vectors<V>(length) <= room) return sum(rows, n, dst, length);
      const int64_t whole = length / N * N;
      sum(rows, n, dst, whole);
      if (whole == length) return;
      const V* rest[max_added];
      for (int r = 0; r < n; ++r) rest[r] = rows[r] + whole;
      V last[N];
      sum(rest, n, last, N);
      for (int64_t j = whole; j < length; ++j) dst[j] = last[j - whole];
    } else {
      sum(rows, n, row_, length);
      store_(row_, to);
    }
  }

  // Adds rows; `last`: the sum is complete and can be divided.
  void sum(const V* const* rows, int n, V* dst, int64_t length, bool last = true) const {
    if (last && !divides_early_)
      with_finish([&](auto finish) { sum_of(rows, n, dst, length, finish); });
    else
      sum_of(rows, n, dst, length, [](auto v) { return v; });
  }

  // Calls f with the function that turns sums into gradients. It adds zero, so that no -0 remains, as in a sum
  // that starts at zero.
  template <class F> void with_finish(F f) const {
    if (multiplies_)
      f([by = inverse_](auto v) __attribute__((always_inline)) { return v * by + V(0); });
    else
      f([by = divisor_](auto v) __attribute__((always_inline)) { return v / by + V(0); });
  }

  template <class F> static void sum_of(const V* const* rows, int n, V* dst, int64_t length, F finish) {
    const auto each_vector = [&](auto value) __attribute__((always_inline)) {
      for (int64_t j = 0; j < length; j += N) write(dst + j, finish(value(j)));
    };
    const V *a = n > 0 ? rows[0] : nullptr, *b = n > 1 ? rows[1] : nullptr, *c = n > 2 ? rows[2] : nullptr;
    if (n == 0)
      each_vector([](int64_t) { return Vn{}; });
    else if (n == 1)
      each_vector([=](int64_t j) { return read<V, N>(a + j); });
    else if (n == 2)
      each_vector([=](int64_t j) { return read<V, N>(a + j) + read<V, N>(b + j); });
    else
      each_vector([=](int64_t j) {
        Vn sum = read<V, N>(a + j) + read<V, N>(b + j) + read<V, N>(c + j);
        for (int r = 3; r < n; ++r) sum += read<V, N>(rows[r] + j);
        return sum;
      });
  }

  // Spreads row o of a slab of gradients over the columns of the tile; writes a tail of up to N elements.
  void spread(const Slab& slab, int64_t o, V* dst) {
    if (o < 0 || o >= rows_.out) {
      for (int64_t j = 0; j < width_; j += N) write(dst + j, Vn{});
      return;
    }
    const Axis& last = walk_.last();
    const V* padded = scaled(slab, o);
    if (n_runs_) return p_.channels == 1 ? fill_runs(padded, dst) : copy_runs(padded, dst);
    if (last.stride == 2) return pairs(padded, dst);
    if (last.stride > 2) return strided(padded, dst);
    const int64_t pitch = last.step * p_.channels;
    const int taps = int(last.kernel);
    for (int64_t j = 0; j < width_; j += N) {
      Vn sum = read<V, N>(padded + j);
      for (int t = 1; t < taps; ++t) sum += read<V, N>(padded + t * pitch + j);
      write(dst + j, sum);
    }
  }

  void pairs(const V* padded, V* dst) const {
    const int64_t evens = columns_.evens, odds = columns_.odds, shift = columns_.odd;
    for (int64_t j = 0; 2 * j < width_; j += N) {
      const V* at = padded + j;
      Vn even = read<V, N>(at + shift), odd = odds ? read<V, N>(at + evens - odds) : Vn{};
      for (int64_t m = 1; m < evens; ++m) even += read<V, N>(at + shift + m);
      for (int64_t m = 1; m < odds; ++m) odd += read<V, N>(at + evens - odds + m);
      const Vn a = shift ? odd : even, b = shift ? even : odd;
      write(dst + 2 * j, zip_lo(a, b));
      if (2 * j + N < width_) write(dst + 2 * j + N, zip_hi(a, b));
    }
  }

  // Strides above 2, a vector of inputs at a time: each input is the sum of the gradients of the windows that
  // contain it, in rising order. Without this, windows of 3 with stride 3 on rows of 6,497 take 1.8 times as long,
  // L2 pooling with such windows 2.7 times.
  void strided(const V* padded, V* dst) const {
    const Axis& last = walk_.last();
    const int64_t covers = ceil_div(last.kernel, last.stride), first = tile_ - last.origin,
                  window = floor_div(first, last.stride);
    const V* at = padded + window - columns_.first;
    int64_t f = first - window * last.stride;
    for (int64_t j = 0; j < width_; j += N) {
      const Phase& phase = phases_[f];
      Vn sum{};
      for (int64_t t = covers - 1; t >= 0; --t) {
        const Vn grads = read<V, N>(at - t), v = permuted(grads, grads, phase.window);
        sum += phase.tap + UnsignedLike<V>(t * last.stride) < UnsignedLike<V>(last.kernel) ? v : Vn{};
      }
      write(dst + j, sum);
      at += phase.windows;
      f = phase.next;
    }
  }

  void fill_runs(const V* padded, V* dst) const {
    for (int64_t r = 0; r < n_runs_; ++r) {
      const Run& run = runs_[r];
      V value = run.n ? padded[run.first] : V(0);
      for (int64_t k = 1; k < run.n; ++k) value += padded[run.first + k * skip_];
      for (int64_t j = run.begin; j < run.end; j += N) write(dst + j, Vn{} + value);
    }
  }

  void copy_runs(const V* padded, V* dst) const {
    for (int64_t r = 0; r < n_runs_; ++r) {
      const Run& run = runs_[r];
      for (int64_t i = run.begin; i < run.end; ++i) {
        const V* from = padded + run.first * p_.channels;
        V* to = dst + i * p_.channels;
        if (run.n == 1) {
          for (int64_t c = 0; c < p_.channels; c += N) write(to + c, read<V, N>(from + c));
          continue;
        }
        for (int64_t c = 0; c < p_.channels; c += N) {
          Vn value = run.n ? read<V, N>(from + c) : Vn{};
          for (int64_t k = 1; k < run.n; ++k) value += read<V, N>(from + k * skip_ * p_.channels + c);
          write(to + c, value);
        }
      }
    }
  }

  // Row o of a slab of gradients, divided where divisors come first, and padded with zeros.
  const V* scaled(const Slab& slab, int64_t o) {
    const int64_t n = (columns_.real_hi - columns_.real_lo) * p_.channels,
                  stride = p_.x.pooled[p_.n_axes - 1];
    const Row row{walk_.plane(p_.x) + slab.grad + o * p_.x.pooled[p_.n_axes - 2] + columns_.real_lo * stride,
                  stride, p_.x.channel, columns_.real_hi - columns_.real_lo, p_.channels};
    const V* from = reinterpret_cast<const V*>(row.data);
    if (!stored_as<V>(p_.x_type) || !row.is_contiguous(sizeof(V)) ||
        !readable_.contains(from, whole_vectors<V>(n))) {
      load_(row, loaded_);
      from = loaded_;
    }
    V* to = padded_ + (columns_.real_lo - columns_.first) * p_.channels;
    const V outer = V(uniform_ ? 1 : max(1, slab.share * row_share(o)));
    if (divides_early_)
      with_finish([=](auto finish) {
        for (int64_t j = 0; j < n; j += N) write(to + j, finish(read<V, N>(from + j)));
      });
    else if (uniform_)
      for (int64_t j = 0; j < n; j += N) write(to + j, read<V, N>(from + j));
    else
      for (int64_t j = 0; j < n; j += N)
        write(to + j, read<V, N>(from + j) / (read<V, N>(divisors_ + j) * outer));
    const int64_t rest = (columns_.first + columns_.count - columns_.real_hi) * p_.channels;
    for (int64_t j = 0; j < rest; j += N) write(to + n + j, Vn{});
    return padded_;
  }

  int64_t row_share(int64_t o) const {
    if (!rows_.regular()) return rows_.counts[o];
    const int64_t first = rows_.origin - rows_.cropped * rows_.step + o * rows_.stride;
    if (first >= rows_.lo && first + (rows_.uncropped - 1) * rows_.step < rows_.hi) return rows_.uncropped;
    return share(rows_, o);
  }

  const Problem& p_;
  const Walk<Over::inputs>& walk_;
  const Axis& rows_;
  Sizes sizes_;
  Columns columns_{single_axis(1), 0, 1};
  int64_t width_, tile_ = -1, n_runs_ = 0;
  int64_t skip_ = 1;  // the distance between outputs that have a tap at the same input
  Load<V> load_;
  Store<V> store_;
  bool contiguous_, uniform_, divides_early_, copies_, multiplies_;
  V divisor_, inverse_;
  const Readable readable_;  // of the gradients
  V *padded_, *divisors_, *loaded_, *spread_, *row_;
  Run* runs_;
  Phase phases_[Columns::max_stride];
  char* rest_;  // of the scratch
  UnsignedLike<V>* valid_;
  int strip_kernel_ = 0;
};

}  // namespace
}  // namespace ndpool
