// The backward of max and min by scattering: a plane of zeros, to which each output adds its gradient where its offset
// says. Outputs come in rising order, so each input adds up in PyTorch's order to the bit. The cost is that of the zeros
// and one addition per output, whatever the window. An offset that stands for no tap inside the input adds nothing.
// For large windows and few channels: adaptive_max_pool2d of (2, 32, 224, 27) to 2, channels-last, takes a third of the
// time that gathering takes.
#pragma once

#include "backward/bands.h"

namespace ndpool {
namespace {

// Gradients are stored as S and added up in V. Scratch holds the sums where S is narrower and windows share inputs.
template <class V, class S, class Offset> class Scatter {
  static constexpr int64_t most_listed = 1 << 10;  // taps whose places are looked up
  static constexpr int64_t slab_bytes = 1 << 17, least_units = 8;
  static constexpr int64_t most_outputs = 1 << 16,
                           most_elements = 1 << 20;  // along an axis; of sums in scratch

public:
  static constexpr const char* engine = "max_backward_scatter";

  static bool serves(const Problem& p) {
    if (!stored_as<S>(p.x_type) || p.x_type != p.y_type) return false;
    for (int a = 0; a < p.n_axes; ++a)
      if (p.axes[a].table_stride || p.axes[a].kernel > INT32_MAX || p.axes[a].out > most_outputs)
        return false;
    return direct(p) || slab_elements(p, 1) <= most_elements;
  }

  // A unit is a slab of a plane: rows of the first axis. Large planes have several, and so do those that are few.
  static void prepare(Problem& p) {
    const int64_t rows = p.axes[0].size, bytes = slab_elements(p, rows) * int64_t(sizeof(V));
    int64_t slabs = most(1, bytes / slab_bytes);
    if (direct(p)) slabs = least(slabs, ceil_div(least_units, p.planes));
    p.tile = ceil_div(rows, least(rows, slabs));
    p.tiles = ceil_div(rows, p.tile);
    p.units = p.planes * p.tiles;
    p.scratch = 0;
    for (int a = 0; a < p.n_axes; ++a) p.scratch += Scratch::bytes<Part>(p.axes[a].out);
    p.scratch += Scratch::bytes<Tap>(most_listed) + Scratch::bytes<int64_t>(most_listed) +
                 (direct(p) ? 0 : Scratch::bytes<V>(slab_elements(p, p.tile) + wide<V>));
  }

  static void run(const Problem& p, int64_t begin, int64_t end, char* memory) {
    Scatter work(p, memory);
    for (int64_t unit = begin; unit < end && !p.stopped(); ++unit) work.slab(unit / p.tiles, unit % p.tiles);
  }

private:
  // One tap of a window: its place, in bytes from the window's beginning, and its number along each axis.
  struct Tap {
    int64_t place;
    std::int32_t at[max_axes];
  };

  // A window as far as it lies in the slab: its nominal beginning in bytes, its first tap and their number.
  struct Part {
    int64_t begin;
    std::int32_t lead, taps;
    bool whole;
  };

  Scatter(const Problem& p, char* memory)
      : p_(p), store_(storer<V>(p.y_type, false)), direct_(direct(p)), codes_(1) {
    Scratch scratch(memory);
    taps_ = scratch.take<Tap>(most_listed);
    places_ = scratch.take<int64_t>(most_listed);
    if (!direct_) sums_ = scratch.take<V>(slab_elements(p, p.tile) + wide<V>);
    lane_ = direct_ ? p.y.lane : int64_t(sizeof(V));
    int64_t pitch = p.lanes * int64_t(sizeof(V));
    for (int a = p.n_axes - 1; a >= 0; --a) {
      step_[a] = direct_ ? p.y.pooled[a] : pitch;
      pitch *= p.axes[a].size;
      codes_ *= std::uint64_t(p.axes[a].kernel);
    }
    for (int a = 0; a < p.n_axes; ++a) {
      parts_[a] = scratch.take<Part>(p.axes[a].out);
      if (a) divide(a, 0, p.axes[a].size);
    }
    listed_ = codes_ <= std::uint64_t(most_listed);
    for (std::uint64_t code = 0; listed_ && code < codes_; ++code) {
      taps_[code] = decoded(code);
      places_[code] = taps_[code].place;
    }
  }

  // The windows of axis a as far as they lie in [lo, hi).
  void divide(int a, int64_t lo, int64_t hi) {
    const Axis& axis = p_.axes[a];
    for (int64_t o = 0; o < axis.out; ++o) {
      const Window w = window(axis, o, lo, hi);
      parts_[a][o] = {begin_of(axis, o) * step_[a], std::int32_t(w.lead), std::int32_t(w.taps),
                      w.lead == 0 && w.taps == axis.kernel};
    }
  }

  Tap decoded(std::uint64_t code) const {
    Tap tap{};
    for (int a = p_.n_axes - 1; a >= 0; --a) {
      const std::uint64_t kernel = std::uint64_t(p_.axes[a].kernel);
      tap.at[a] = std::int32_t(code % kernel);
      tap.place += tap.at[a] * p_.axes[a].step * step_[a];
      code /= kernel;
    }
    return tap;
  }

  static bool direct(const Problem& p) {
    bool shared = false;
    for (int a = 0; a < p.n_axes; ++a) shared |= most_covers(p.axes[a], p.planes) > 1;
    return std::is_same_v<V, S> || !shared;
  }

  static int64_t slab_elements(const Problem& p, int64_t rows) {
    int64_t n = rows * p.lanes;
    for (int a = 1; a < p.n_axes; ++a) n *= p.axes[a].size;
    return n;
  }

  // Rows [from_, to_) of a plane.
  void slab(int64_t plane, int64_t tile) {
    from_ = tile * p_.tile;
    to_ = least(from_ + p_.tile, p_.axes[0].size);
    if (tile != tile_) divide(0, from_, to_);
    tile_ = tile;
    char* y = plane_of(p_, p_.y, plane) + from_ * p_.y.pooled[0];
    const char *x = plane_of(p_, p_.x, plane), *offsets = plane_of(p_, p_.extra_array, plane);
    if (direct_) {
      clear(0, y);
      add<S>(0, x, offsets, y - from_ * step_[0], true);
    } else {
      std::memset(sums_, 0, size_t(slab_elements(p_, to_ - from_)) * sizeof(V));
      add<V>(0, x, offsets, reinterpret_cast<char*>(sums_) - from_ * step_[0], true);
      const V* sums = sums_;
      store(0, sums, y);
    }
  }

  int64_t extent(int a) const { return a == 0 ? to_ - from_ : p_.axes[a].size; }

  // The elements along axis a and those behind it if they have no gaps; 0 otherwise.
  int64_t packed(int a) const {
    int64_t n = p_.lanes;
    if (n > 1 && p_.y.lane != sizeof(S)) return 0;
    for (int b = p_.n_axes - 1; b >= a; --b) {
      if (extent(b) > 1 && p_.y.pooled[b] != n * int64_t(sizeof(S))) return 0;
      n *= extent(b);
    }
    return n;
  }

  void clear(int a, char* y) const {
    if (const int64_t n = packed(a))
      std::memset(y, 0, size_t(n) * sizeof(S));
    else if (a < p_.n_axes)
      for (int64_t i = 0; i < extent(a); ++i) clear(a + 1, y + i * p_.y.pooled[a]);
    else
      for (int64_t c = 0; c < p_.lanes; ++c) *reinterpret_cast<S*>(y + c * p_.y.lane) = S{};
  }

  void store(int a, const V*& sums, char* y) const {
    const int last = p_.n_axes - 1;
    if (const int64_t n = packed(a)) {
      store_(sums, {y, sizeof(S), 1, n, 1});
      sums += n;
    } else if (a < last) {
      for (int64_t i = 0; i < extent(a); ++i) store(a + 1, sums, y + i * p_.y.pooled[a]);
    } else {
      store_(sums, {y, p_.y.pooled[last], p_.y.lane, extent(last), p_.lanes});
      sums += extent(last) * p_.lanes;
    }
  }

  // The outputs along axis a and those behind it, into elements of type T. `y`: where their windows begin, perhaps in the
  // padding. `inside`: no window so far reaches over an end.
  template <class T> void add(int a, const char* x, const char* offsets, char* y, bool inside) {
    const Axis& axis = p_.axes[a];
    const int64_t x_step = p_.x.pooled[a], offset_step = p_.extra_array.pooled[a];
    const bool last = a == p_.n_axes - 1;
    for (int64_t o = 0; o < axis.out; ++o) {
      const Part& part = parts_[a][o];
      if (part.taps == 0) continue;
      const bool whole = inside && part.whole;
      char* to = y + part.begin;
      held_[a] = &part;
      if (!last) {
        add<T>(a + 1, x + o * x_step, offsets + o * offset_step, to, whole);
      } else if (whole && axis.regular() && p_.lanes == 1) {
        // The interior of a row: no window has to be looked at.
        int64_t end = o + 1;
        while (end < axis.out && parts_[a][end].whole) ++end;
        add_row<T>(end - o, x + o * x_step, x_step, offsets + o * offset_step, offset_step, to,
                   axis.stride * step_[a]);
        o = end - 1;
      } else {
        for (int64_t c = 0; c < p_.lanes; ++c) {
          const char *from = x + o * x_step + c * p_.x.lane,
                     *offset = offsets + o * offset_step + c * p_.extra_array.lane;
          whole ? add_one<T, true>(from, offset, to + c * lane_)
                : add_one<T, false>(from, offset, to + c * lane_);
        }
      }
    }
  }

  template <class T> void add_row(int64_t n, const char* x, int64_t x_step, const char* offset,
                                  int64_t offset_step, char* y, int64_t y_step) {
    const std::uint64_t codes = codes_;
    const int64_t* const places = places_;
    for (int64_t j = 0; j < n; ++j, x += x_step, offset += offset_step, y += y_step) {
      const auto code = std::uint64_t(*reinterpret_cast<const Offset*>(offset));
      if (code >= codes) continue;
      T* to = reinterpret_cast<T*>(y + (listed_ ? places[code] : decoded(code).place));
      *to = store_as<T>(V(load_as<V>(*to) + load_as<V>(*reinterpret_cast<const S*>(x))));
    }
  }

  template <class T, bool whole> void add_one(const char* x, const char* offset, char* y) const {
    const auto code = std::uint64_t(*reinterpret_cast<const Offset*>(offset));
    if (code >= codes_) return;
    const Tap tap = listed_ ? taps_[code] : decoded(code);
    if (!whole)
      for (int a = 0; a < p_.n_axes; ++a)
        if (std::uint32_t(tap.at[a] - held_[a]->lead) >= std::uint32_t(held_[a]->taps)) return;
    T* to = reinterpret_cast<T*>(y + tap.place);
    *to = store_as<T>(V(load_as<V>(*to) + load_as<V>(*reinterpret_cast<const S*>(x))));
  }

  const Problem& p_;
  const Store<V> store_;
  const bool direct_;
  bool listed_;
  std::uint64_t codes_;
  Tap* taps_;
  int64_t* places_;  // of the taps, once more
  V* sums_ = nullptr;
  int64_t lane_, step_[max_axes], from_ = 0, to_ = 0, tile_ = -1;
  Part* parts_[max_axes];  // of all outputs of each axis
  const Part* held_[max_axes];
};

}  // namespace
}  // namespace ndpool
