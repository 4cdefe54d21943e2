// The backward of maxima and minima by scattering: one add for each output, whatever the window. A piece of the
// input's gradient is kept in L1; where the outputs that reach it add their gradients is found a vector at a time,
// from their offsets. Outputs come in rising order, so each input adds up in PyTorch's order to the bit. An offset
// that points outside its window's part of the input, or beyond the piece, adds to an element that nobody reads.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

template <class V, class Offset> class ScatterTiles {
  using Place = std::uint32_t;
  static constexpr int L = wide<Place>;
  using Places = Vec<Place, L>;
  static constexpr int64_t widest_tile = 1 << 11,
                           piece_size = 1 << 12;  // elements
  static constexpr int together = 4;              // small planes worked on in turn
  static constexpr int shift = 22;  // a product and a shift divide codes below 1024 by the taps of a row

public:
  static constexpr const char* engine = "max_backward_tiles";

  static bool serves(const Problem& p) {
    return p.lanes == 1 && most_slabs(p) <= max_slabs && p.axes[p.n_axes - 1].out <= 1 << 20;
  }

  static void prepare(Problem& p) {
    add_row_axis(p);
    set_units(p, widest_tile);
    char begin;  // only what is taken is of interest
    Scratch scratch(&begin);
    ScatterTiles(p, scratch);
    p.scratch = scratch.take<char>(0) - &begin;
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Walk<Over::inputs> walk(p, begin);
    Scratch scratch(memory);
    ScatterTiles worker(p, scratch);
    worker.clear();
    const int64_t size = p.axes[p.n_axes - 2].size;
    for (int64_t unit = begin; unit < end;) {
      const int64_t h0 = walk.at(p.n_axes - 2), h1 = least(size, h0 + end - unit);
      worker.slab(walk, h0, h1);
      unit += h1 - h0;
      if (unit < end) walk.next_slab();
    }
    worker.flush();
  }

private:
  ScatterTiles(const Problem& p, Scratch& scratch)
      : p_(p), load_(loader<V>(p.x_type, false)), store_(storer<V>(p.y_type, false)),
        direct_(stored_as<V>(p.y_type) && p.y.pooled[p.n_axes - 1] == sizeof(V)),
        end_(readable_end(p, p.extra_array, sizeof(Offset), Over::outputs)) {
    const Axis &rows = p.axes[p.n_axes - 2], &last = p.axes[p.n_axes - 1];
    piece_rows_ = most(1, least(rows.size, piece_size / p.tile));
    sink_ = Place(piece_rows_ * p.tile);
    places_room_ = most(last.out, least(last.out * rows.out, piece_size));
    for (Plane& plane : planes_) {
      plane.piece = scratch.take<V>(sink_ + 1);
      plane.places = scratch.take<Place>(places_room_ + L);
    }
    piece_ = planes_[0].piece;
    places_ = planes_[0].places;
    at_ = scratch.take<Place>(last.out + L);
    lead_ = scratch.take<Place>(last.out + L);
    taps_ = scratch.take<Place>(last.out + L);
    raw_ = scratch.take<V>(last.out);
    laid_out_ = scratch.take<Place>(5 * (places_room_ + L));
    offsets_ = reinterpret_cast<Offset*>(scratch.take<std::int32_t>(last.out + L));
  }

  void clear() {
    for (const Plane& plane : planes_)
      for (int64_t j = 0; j <= int64_t(sink_); ++j) plane.piece[j] = V(0);
    const int64_t n = p_.axes[p_.n_axes - 1].out + L;
    for (int64_t j = 0; j < n; ++j) at_[j] = lead_[j] = taps_[j] = 0, offsets_[j] = 0;
  }

  // For each output of the last axis that reaches the tile: its first nominal tap, and those that lie in the tile.
  void enter_tile(const Axis& last, int64_t i0, int64_t i1) {
    tile_ = i0;
    width_ = i1 - i0;
    outs_ = {Cover(last, i0).lo, Cover(last, i1 - 1).hi};
    for (int64_t o = outs_.lo; o < outs_.hi; ++o) {
      const Window w = window(last, o, i0, i1);
      at_[o - outs_.lo] = Place(start(last, o) - i0);
      lead_[o - outs_.lo] = Place(w.lead);
      taps_[o - outs_.lo] = Place(w.taps);
    }
  }

  static int64_t start(const Axis& a, int64_t o) {
    return a.regular() ? a.origin + o * a.stride : a.starts[o];
  }

  void slab(const Walk<Over::inputs>& walk, int64_t h0, int64_t h1) {
    const Axis &rows = walk.axis(p_.n_axes - 2), &last = walk.last();
    if (walk.tile_begin() != tile_ || last.table_stride) {
      enter_tile(last, walk.tile_begin(), walk.tile_end());
      lay_out_plane(walk);
    }
    Slab slabs[max_slabs];
    const int n = slabs_around(p_, walk, slabs);
    const int64_t y_pitch = p_.y.pooled[p_.n_axes - 2], y_stride = p_.y.pooled[p_.n_axes - 1];
    char* y = walk.plane(p_.y) + tile_ * y_stride;
    for (int a = 0; a + 1 < p_.n_axes; ++a) y += (a + 2 == p_.n_axes ? h0 : walk.at(a)) * p_.y.pooled[a];
    if (plane_ && n == 1 && h1 - h0 == rows.size && find_plane(walk, slabs[0], y)) return;
    flush();
    for (; h0 < h1; h0 += piece_rows_, y += piece_rows_ * y_pitch) {
      const int64_t end = least(h1, h0 + piece_rows_);
      const int64_t first = Cover(rows, h0).lo, beyond = Cover(rows, end - 1).hi;
      for (int k = 0; k < n && outs_.lo < outs_.hi; ++k) add(walk, slabs[k], first, beyond, h0, end);
      move_out(piece_, y, end - h0);
    }
  }

  void move_out(V* piece, char* y, int64_t rows) const {
    const int64_t y_pitch = p_.y.pooled[p_.n_axes - 2], y_stride = p_.y.pooled[p_.n_axes - 1];
    if (direct_ && y_pitch == width_ * int64_t(sizeof(V))) return move_row(piece, y, rows * width_);
    for (int64_t h = 0; h < rows; ++h, piece += width_, y += y_pitch) {
      if (!direct_) store_(piece, {y, y_stride, p_.y.lane, width_, 1});
      move_row(piece, direct_ ? y : reinterpret_cast<char*>(piece), width_);
    }
  }

  // The sums of a piece to where they belong; zeros stay behind.
  static void move_row(V* from, char* to, int64_t n) {
    constexpr int N = wide<V>;
    V* y = reinterpret_cast<V*>(to);
    int64_t j = 0;
    for (; j + N <= n; j += N) {
      write(y + j, read<V, N>(from + j));
      write(from + j, Vec<V, N>{});
    }
    for (; j < n; ++j) {
      y[j] = from[j];
      from[j] = V(0);
    }
  }

  // Output rows [first, beyond) of a slab, as far as they belong to input rows [h0, h1).
  void add(const Walk<Over::inputs>& walk, const Slab& slab, int64_t first, int64_t beyond, int64_t h0,
           int64_t h1) {
    const int64_t n = outs_.hi - outs_.lo, pitch = p_.x.pooled[p_.n_axes - 2], at_once = places_room_ / n;
    for (int64_t o = first; o < beyond; o += at_once) {
      const int64_t rows = least(at_once, beyond - o);
      for (int64_t r = 0; r < rows; ++r) find(walk, slab, o + r, h0, h1, places_ + r * n);
      const Row grads = outputs(walk, p_.x, slab.grad, o);
      const bool packed = stored_as<V>(p_.x_type) && grads.packed(sizeof(V));
      if (packed && (rows == 1 || pitch == n * int64_t(sizeof(V)))) {
        add_row(piece_, reinterpret_cast<const V*>(grads.data), places_, rows * n);
        continue;
      }
      for (int64_t r = 0; r < rows; ++r) {
        Row row = grads;
        row.data += r * pitch;
        if (!packed) load_(row, raw_);
        add_row(piece_, packed ? reinterpret_cast<const V*>(row.data) : raw_, places_ + r * n, n);
      }
    }
  }

  // A small plane's sums, a chain of adds to few places: they are kept back until several can be done in turn.
  struct Plane {
    V* piece;
    Place* places;
    const V* grad;
    char* y;
  };

  // A whole small plane at once, if its rows follow each other: what `find` needs was laid out for all of it.
  bool find_plane(const Walk<Over::inputs>& walk, const Slab& slab, char* y) {
    const Row grads = outputs(walk, p_.x, slab.grad, 0), extra = outputs(walk, p_.extra_array, slab.extra, 0);
    if (extra.data + (plane_size_ + L) * int64_t(sizeof(Offset)) > end_) return false;
    Plane& plane = planes_[waiting_];
    plane.grad = reinterpret_cast<const V*>(grads.data);
    plane.y = y;
    places_of(walk, slab, reinterpret_cast<const Offset*>(extra.data), plane_size_, plane.places,
              [laid_out = plane_](int64_t j) __attribute__((always_inline)) {
                const Place* at = laid_out + j / L * 5 * L;
                return Bounds{read<Place, L>(at), read<Place, L>(at + L), read<Place, L>(at + 2 * L),
                              read<Place, L>(at + 3 * L), read<Place, L>(at + 4 * L)};
              });
    if (++waiting_ == together) flush();
    return true;
  }

  void flush() {
    if (waiting_ == together) {
      const Plane a = planes_[0], b = planes_[1], c = planes_[2], d = planes_[3];
      for (int64_t j = 0; j < plane_size_; ++j) {
        a.piece[a.places[j]] += a.grad[j];
        b.piece[b.places[j]] += b.grad[j];
        c.piece[c.places[j]] += c.grad[j];
        d.piece[d.places[j]] += d.grad[j];
      }
    } else {
      for (int k = 0; k < waiting_; ++k)
        add_row(planes_[k].piece, planes_[k].grad, planes_[k].places, plane_size_);
    }
    for (int k = 0; k < waiting_; ++k) move_out(planes_[k].piece, planes_[k].y, piece_rows_);
    waiting_ = 0;
  }

  void lay_out_plane(const Walk<Over::inputs>& walk) {
    const Axis& rows = walk.axis(p_.n_axes - 2);
    const int64_t a = p_.n_axes - 1, n = outs_.hi;
    plane_ = nullptr;
    if (rows.table_stride || walk.last().table_stride || outs_.lo || width_ != walk.last().size ||
        piece_rows_ != rows.size || rows.out * n > places_room_ || !stored_as<V>(p_.x_type) ||
        p_.x.pooled[a] != sizeof(V) || p_.x.pooled[a - 1] != n * int64_t(sizeof(V)) ||
        p_.extra_array.pooled[a] != sizeof(Offset) ||
        p_.extra_array.pooled[a - 1] != n * int64_t(sizeof(Offset)))
      return;
    plane_ = laid_out_;
    plane_size_ = rows.out * n;
    plane_size_ = rows.out * n;
    const Place kernel = Place(walk.last().kernel);
    for (int64_t o = 0, j = 0; o < rows.out; ++o) {
      const Window w = window(rows, o);
      for (int64_t c = 0; c < n; ++c, ++j) {
        Place* at = plane_ + j / L * 5 * L + j % L;
        at[0] = Place(start(rows, o) * width_) + at_[c];
        at[L] = Place(w.lead) * kernel;
        at[2 * L] = Place(w.taps) * kernel;
        at[3 * L] = lead_[c];
        at[4 * L] = taps_[c];
      }
    }
  }

  static void add_row(V* piece, const V* grad, const Place* places, int64_t n) {
    for (int64_t j = 0; j < n; ++j) piece[places[j]] += grad[j];
  }

  // Where the outputs of row o add their gradients.
  void find(const Walk<Over::inputs>& walk, const Slab& slab, int64_t o, int64_t h0, int64_t h1,
            Place* places) const {
    const Axis &rows = walk.axis(p_.n_axes - 2), &last = walk.last();
    const Window w = window(rows, o, h0, h1);
    const Row row = outputs(walk, p_.extra_array, slab.extra, o);
    const Offset* offsets = reinterpret_cast<const Offset*>(row.data);
    if (!row.packed(sizeof(Offset)) || row.data + (row.n + L) * int64_t(sizeof(Offset)) > end_) {
      each<Offset>(row, [this](Offset& offset, int64_t j) { offsets_[j] = offset; });
      offsets = offsets_;
    }
    const int64_t first = (start(rows, o) - h0) * width_;
    places_of(walk, slab, offsets, row.n, places, [=, this](int64_t j) __attribute__((always_inline)) {
      const Place kernel = Place(last.kernel);
      // The codes of taps in these rows follow each other.
      return Bounds{read<Place, L>(at_ + j) + Place(first), Places{} + Place(w.lead) * kernel,
                    Places{} + Place(w.taps) * kernel, read<Place, L>(lead_ + j), read<Place, L>(taps_ + j)};
    });
  }

  // Of L outputs: where their first nominal taps stand, and which codes and which taps of the last axis they may
  // have.
  struct Bounds {
    Places at, from, codes, lead, taps;
  };

  template <class F> void places_of(const Walk<Over::inputs>& walk, const Slab& slab, const Offset* offsets,
                                    int64_t n, Place* places, F bounds) const {
    const Axis &rows = walk.axis(p_.n_axes - 2), &last = walk.last();
    const Place kernel = Place(last.kernel), base = Place(slab.code) * Place(rows.kernel) * kernel;
    const Place down = Place(rows.step * width_), right = Place(last.step), sink = sink_;
    const bool small = rows.kernel <= 1024 && last.kernel <= 1024 && rows.kernel * last.kernel <= 1024;
    const Place inverse = Place((1 << shift) / last.kernel + 1);
    for (int64_t j = 0; j < n; j += L) {
      const Bounds b = bounds(j);
      const Places code = widened<Place, L>(offsets + j) - base;
      const Places up = small ? code * inverse >> shift : code / kernel, tap = code - up * kernel;
      const auto inside = (code - b.from < b.codes) & (tap - b.lead < b.taps);
      write(places + j, inside ? b.at + up * down + tap * right : Places{} + sink);
    }
  }

  Row outputs(const Walk<Over::inputs>& walk, const Array& array, int64_t slab, int64_t o) const {
    const int64_t stride = array.pooled[p_.n_axes - 1];
    return {walk.plane(array) + slab + o * array.pooled[p_.n_axes - 2] + outs_.lo * stride, stride,
            array.lane, outs_.hi - outs_.lo, 1};
  }

  const Problem& p_;
  Load<V> load_;
  Store<V> store_;
  bool direct_;
  const char* end_;
  int64_t tile_ = -1, width_ = 0, piece_rows_, places_room_;
  Range outs_{0, 0};  // outputs that reach the tile
  Place sink_, *places_, *at_, *lead_, *taps_, *laid_out_, *plane_ = nullptr;
  V *piece_, *raw_;
  Offset* offsets_;
  Plane planes_[together];
  int waiting_ = 0;
  int64_t plane_size_ = 0;
};

}  // namespace
}  // namespace ndpool
