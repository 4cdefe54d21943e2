// The backward of maxima and minima from the offsets that the forward pass kept. Every input row gathers from the
// windows that hold it in rising order of their outputs, PyTorch's order to the bit. The rows of outputs are first
// copied between zeros, a band of them at a time; then each input finds its windows at fixed distances, and an
// output counts where its offset is the input's own place in that window.
#pragma once

#include "bands.h"

namespace ndpool {
namespace {

template <class V> class PickRows {
  static constexpr int N = wide<V>;
  using Vn = Vec<V, N>;
  using C = UnsignedLike<V>;
  using Cn = Vec<C, N>;
  static constexpr int most_listed = 64;

  // A row of outputs that holds a row of inputs: how far off it lies, and the code of its first tap there.
  struct Listed {
    int64_t at;
    C code;
  };

public:
  static bool serves(const Problem& p) {
    if (p.n_axes > 1 && !Columns::fixed(p.axes[p.n_axes - 2])) return false;
    const Axis& last = p.axes[p.n_axes - 1];
    if (p.lanes > 1 || !Columns::fixed(last)) return false;
    const int64_t slabs = most_slabs(p), rows = p.n_axes > 1 ? p.axes[p.n_axes - 2].kernel : 1;
    return rows <= most_listed && slabs * rows <= most_listed &&
           slabs * rows * last.kernel <= 64 * last.stride && sizes(p).bytes <= 1 << 22;
  }

  static void prepare(Problem& p) {
    add_row_axis(p);
    const Sizes s = sizes(p);
    set_units(p, s.tile);
    p.scratch = s.bytes;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    PickRows worker(p, walk, memory);
    const int64_t size = worker.rows_.size;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(p.n_axes - 2), h1 = least(size, h0 + end - unit);
      worker.slab(h0, h1, (end - unit) * worker.width_);
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
  }

private:
  struct Sizes {
    int64_t tile, pitch, kept, bytes;  // of a padded row; of rows in a band
  };

  static Sizes sizes(Problem p) {
    add_row_axis(p);
    const Axis &rows = p.axes[p.n_axes - 2], &last = p.axes[p.n_axes - 1];
    Sizes s;
    s.tile = least(last.size, 1024);
    s.pitch = Columns::most_of(last, s.tile);
    const int64_t slabs = most_slabs(p), halo = (rows.kernel - 1) * rows.step + 1;
    s.kept = least(rows.size + halo, most(2 * halo + 2, band_bytes / 4 / (slabs * s.pitch * int64_t(sizeof(V)))));
    s.bytes = Scratch::bytes<V>(slabs * s.kept * s.pitch + 4 * N) + Scratch::bytes<C>(slabs * s.kept * s.pitch + 4 * N) +
              Scratch::bytes<V>(s.pitch + N) + Scratch::bytes<V>(s.tile + 2 * N);
    return s;
  }

  PickRows(const Problem& p, const Walk<Over::inputs>& walk, char* memory)
      : p_(p), walk_(walk), rows_(walk.axis(p.n_axes - 2)), sizes_(sizes(p)), load_(loader<V>(p.x_type, false)),
        store_(storer<V>(p.y_type, false)), follow_(rows_follow<V>(p)), grad_end_(readable_end(p, p.x, sizeof(V))),
        code_end_(readable_end(p, p.extra_array, p.extra == Extra::offset8 ? 1 : 4)) {
    Scratch scratch(memory);
    const int64_t slabs = most_slabs(p), cells = slabs * sizes_.kept * sizes_.pitch + 4 * N;
    values_ = scratch.take<V>(cells);
    codes_ = scratch.take<C>(cells);
    raw_ = scratch.take<V>(sizes_.pitch + N);
    row_ = scratch.take<V>(sizes_.tile + 2 * N);
    for (int64_t j = 0; j < cells; ++j) codes_[j] = 0, values_[j] = V(0);
    enter_tile();
  }

  void enter_tile() {
    tile_ = walk_.tile_begin();
    columns_ = Columns(walk_.last(), tile_, walk_.tile_end());
    width_ = walk_.tile_end() - tile_;
  }

  // Input rows [h0, h1) of the walk's slab; `room` elements from the first of them on are this worker's to write.
  void slab(int64_t h0, int64_t h1, int64_t room) {
    if (walk_.tile_begin() != tile_) enter_tile();
    Slab slabs[max_slabs];
    const int n = slabs_around(p_, walk_, slabs);
    const int64_t stride = rows_.stride, pitch = columns_.count, y_pitch = p_.y.pooled[p_.n_axes - 2];
    // For inputs at each distance (mod stride) from the origin: the rows that hold them, rising.
    Listed list[2 * most_listed];
    int lists[3] = {0, 0, 0};
    const int64_t behind = (rows_.kernel - 1) * rows_.step / stride;  // rows between the first and the last
    for (int64_t residue = 0; residue < stride; ++residue) {
      int m = lists[residue];
      for (int k = 0; k < n; ++k)
        for (int64_t t = rows_.kernel - 1; t >= 0; --t)
          if (t % stride == residue || stride == 1)
            list[m++] = {(k * sizes_.kept + behind - t * rows_.step / stride) * pitch,
                         C((slabs[k].code * rows_.kernel + t) * walk_.last().kernel)};
      lists[residue + 1] = m;
    }
    char* y = walk_.plane(p_.y) + tile_ * p_.y.pooled[p_.n_axes - 1];
    for (int a = 0; a + 1 < p_.n_axes; ++a) y += (a + 2 == p_.n_axes ? h0 : walk_.at(a)) * p_.y.pooled[a];
    const int64_t piece = (sizes_.kept - behind - 1) * stride;
    for (; h0 < h1; h0 += piece, y += piece * y_pitch, room -= piece * width_) {
      const int64_t count = least(piece, h1 - h0), from = floor_div(h0 - rows_.origin, stride) - behind;
      const int64_t to = floor_div(h0 + count - 1 - rows_.origin, stride) + 1;
      for (int k = 0; k < n; ++k)
        for (int64_t o = from; o < to; ++o) load(slabs[k], o, (k * sizes_.kept + o - from) * pitch);
      const Sweep s{list, {lists[0], lists[1], lists[2]}, int((h0 - rows_.origin) & (stride - 1)), count, y, room};
      const Axis& last = walk_.last();
      if (last.stride == 1)
        last.kernel == 3 ? sweep<1, 3>(s) : last.kernel == 5 ? sweep<1, 5>(s) : sweep<1, 0>(s);
      else
        last.kernel == 2 ? sweep<2, 2>(s) : last.kernel == 3 ? sweep<2, 3>(s) : sweep<2, 0>(s);
    }
  }

  // A run of input rows: what they gather from, and where they go.
  struct Sweep {
    const Listed* list;
    int lists[3], residue;
    int64_t count;
    char* y;
    int64_t room;
  };

  template <int Stride, int Kernel> __attribute__((noinline)) void sweep(const Sweep& s) const {
    const bool direct = follow_ || (stored_as<V>(p_.y_type) && p_.y.pooled[p_.n_axes - 1] == sizeof(V));
    const int64_t width = width_, pitch = columns_.count, y_pitch = p_.y.pooled[p_.n_axes - 2];
    const Axis& last = walk_.last();
    const int taps = Kernel ? Kernel : int(last.kernel), evens = (taps + 1) / 2, odds = taps / 2;
    const int64_t step = Kernel == 2 || Stride == 2 ? 1 : last.step, shift = columns_.odd;
    const V* values = values_;
    const C* codes = codes_;
    char* y = s.y;
    int64_t room = s.room;
    int residue = s.residue;
    for (int64_t r = 0; r < s.count; ++r, y += y_pitch, room -= width) {
      const bool spills = follow_ && room >= width + 2 * N;
      V* dst = spills ? reinterpret_cast<V*>(y) : row_;
      const Listed *begin = s.list + s.lists[residue], *end = s.list + s.lists[residue + 1];
      // The sum over the listed rows of the outputs `from` columns on, `n` of them with taps that fall by Stride.
      const auto gather = [&](int64_t from, int n, int last_tap) __attribute__((always_inline)) {
        Vn sum = {};
        for (const Listed* e = begin; e < end; ++e)
          for (int k = 0; k < n; ++k) {
            const int64_t at = e->at + from + k * step;
            const C code = e->code + C(last_tap + (n - 1 - k) * Stride);
            sum += read<C, N>(codes + at) == code ? read<V, N>(values + at) : Vn{};
          }
        return sum;
      };
      if constexpr (Stride == 1) {
        for (int64_t j = 0; j < width; j += N) write(dst + j, gather(j, taps, 0));
      } else {
        for (int64_t j = 0; 2 * j < width; j += N) {
          const Vn even = gather(j + shift, evens, 0), odd = gather(j + evens - odds, odds, 1);
          const Vn a = shift ? odd : even, b = shift ? even : odd;
          write(dst + 2 * j, zip_lo(a, b));
          if (2 * j + N < width) write(dst + 2 * j + N, zip_hi(a, b));
        }
      }
      if (!spills) {
        if (direct)
          __builtin_memcpy(y, row_, size_t(width) * sizeof(V));
        else
          store_(row_, {y, p_.y.pooled[p_.n_axes - 1], p_.y.lane, width, 1});
      }
      if (++residue == rows_.stride) {
        residue = 0;
        values += pitch;
        codes += pitch;
      }
    }
  }

  // Row o of a slab of outputs to its place in the band: gradients without negative zeros, and codes.
  void load(const Slab& slab, int64_t o, int64_t at) {
    V* to = values_ + at;
    const int64_t n = columns_.real_hi - columns_.real_lo, lead = columns_.real_lo - columns_.first,
                  total = columns_.count;
    if (o < 0 || o >= rows_.out || n == 0) {
      for (int64_t j = 0; j < total; j += N) write(to + j, Vn{});
      return;
    }
    const Row grad = outputs(p_.x, slab.grad, o), extra = outputs(p_.extra_array, slab.extra, o);
    const V* from = reinterpret_cast<const V*>(grad.data);
    if (!stored_as<V>(p_.x_type) || !grad.packed(sizeof(V)) ||
        grad.data + whole_vectors<V>(n) * int64_t(sizeof(V)) > grad_end_) {
      load_(grad, raw_);
      from = raw_;
    }
    for (int64_t j = 0; j < lead; j += N) write(to + j, Vn{});
    for (int64_t j = 0; j < n; j += N) write(to + lead + j, read<V, N>(from + j) + V(0));
    for (int64_t j = lead + n; j < total; j += N) write(to + j, Vn{});
    if (p_.extra == Extra::offset8)
      load_codes<std::uint8_t>(extra, codes_ + at + lead);
    else
      load_codes<std::int32_t>(extra, codes_ + at + lead);
  }

  template <class Offset> void load_codes(const Row& row, C* to) const {
    if (row.packed(sizeof(Offset)) && row.data + whole_vectors<V>(row.n) * int64_t(sizeof(Offset)) <= code_end_) {
      const Offset* from = reinterpret_cast<const Offset*>(row.data);
      for (int64_t j = 0; j < row.n; j += N) write(to + j, __builtin_convertvector(read<Offset, N>(from + j), Cn));
    } else {
      each<Offset>(row, [to](Offset& o, int64_t j) { to[j] = C(o); });
    }
  }

  Row outputs(const Array& array, int64_t slab, int64_t o) const {
    const int64_t stride = array.pooled[p_.n_axes - 1];
    return {walk_.plane(array) + slab + o * array.pooled[p_.n_axes - 2] + columns_.real_lo * stride, stride, array.lane,
            columns_.real_hi - columns_.real_lo, 1};
  }

  const Problem& p_;
  const Walk<Over::inputs>& walk_;
  const Axis& rows_;
  Sizes sizes_;
  Columns columns_{single_axis(1), 0, 1};
  int64_t width_ = 0, tile_ = -1;
  Load<V> load_;
  Store<V> store_;
  bool follow_;
  const char *grad_end_, *code_end_;
  V *values_, *raw_, *row_;
  C* codes_;
};

}  // namespace
}  // namespace ndpool
