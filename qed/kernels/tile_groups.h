// Operands of attention in the order in which tiles read them: each tile is 16 consecutive cache lines.
//
// Keys, values, queries and gradients are arranged in groups of 32 rows. A tile of rows has 32 numbers of each of 16 rows; a
// tile of columns, or of sums, has 16 columns.

#pragma once

#include "blocks.h"
#include "tiles.h"

#ifdef HAS_TILES

namespace {

constexpr int64_t NUMBERS = SIDE * SIDE;  // pairs, or sums, of a tile

struct Tile {
    Line lines[SIDE];
};

// The width of a head, padded with zeros to whole tiles: `steps` of 32 numbers, `parts` of 16. A group takes `parts` tiles.
struct Shape {
    explicit Shape(int64_t of_head) : width(of_head), steps(divide_up(of_head, GROUP)), parts(2 * steps) {}

    int64_t width, steps, parts;
};

// Operands and sums whose tiles are consecutive; distances count tiles.
inline Operand find_tiles(const Tile *first, int64_t other, int64_t step) {
    return {reinterpret_cast<const Pair *>(first), SIDE, other * NUMBERS, step * NUMBERS};
}

inline Sums find_sums(Tile *first, int64_t beside, int64_t below) {
    return {reinterpret_cast<float *>(first), SIDE, beside * NUMBERS, below * NUMBERS};
}

// Interleaves the numbers of two lines: the first 16 of each, or the last 16.
inline Line zip_lines(Line one, Line other, bool last) {
    const SixteenPairs places = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};
    return _mm512_permutex2var_epi16(one, (Line)((places | (places + 32) << 16) + (last ? 0x100010u : 0)), other);
}

// Reads a group, [2, steps] tiles of rows. `find_row(i)` is a row's address, or null for a row of zeros.
template <typename Find>
void read_rows(const Shape &shape, Find find_row, Tile *to) {
    for (int64_t i = 0; i < GROUP; i++) {
        const bfloat16 *row = find_row(i);
        for (int64_t step = 0; step < shape.steps; step++) {
            Line &line = to[i / SIDE * shape.steps + step].lines[i % SIDE];
            line = row ? _mm512_maskz_loadu_epi16(find_mask(shape.width - step * GROUP), row + step * GROUP) : Line{};
        }
    }
}

// Transposes a group: [steps, 2] tiles, each of 16 pairs of numbers, one below the other, of 16 rows.
inline void flip_rows(const Shape &shape, const Tile *rows, Tile *to) {
    for (int64_t half = 0; half < 2; half++)
        for (int64_t step = 0; step < shape.steps; step++) {
            Tile &tile = to[2 * step + half] = rows[half * shape.steps + step];
            transpose_lines(tile.lines);
        }
}

// Joins each row of a group with the next one: `parts` tiles, `apart` from each other, each of 16 numbers of 16 pairs of rows.
inline void stack_rows(const Shape &shape, const Tile *rows, int64_t apart, Tile *to) {
    for (int64_t part = 0; part < shape.parts; part++)
        for (int64_t pair = 0; pair < SIDE; pair++) {
            const Line *from = rows[2 * pair / SIDE * shape.steps + part / 2].lines + 2 * pair % SIDE;
            to[part * apart].lines[pair] = zip_lines(from[0], from[1], part % 2);
        }
}

// Transposes a group by single numbers: `parts` tiles, `apart` from each other, each of 16 numbers, one below the other, of 32
// rows.
inline void turn_rows(const Shape &shape, const Tile *rows, int64_t apart, Tile *to) {
    stack_rows(shape, rows, apart, to);
    for (int64_t part = 0; part < shape.parts; part++) transpose_lines(to[part * apart].lines);
}

// Reads a group of a head's keys or values of a slice, with zeros after the last.
inline void read_group(const PackedAttention &a, const Segment &segment, const Slice &slice, int64_t group,
                       const bfloat16 *states, Tile *to) {
    auto find_row = [&](int64_t i) {
        int64_t key = group * GROUP + i;
        return key < slice.count ? states + segment.place(slice.first + key) * a.heads * a.width : nullptr;
    };
    read_rows(Shape(a.width), find_row, to);
}

// A group of queries of a segment, from `query` on, and the keys that they attend to.
struct Sight {
    const Segment &segment;
    int64_t query, window;

    // A bit for each query that attends to a key.
    uint32_t find_queries(int64_t key) const {
        int64_t first = key - segment.prompt_length - query, last = segment.length - query;
        return find_mask(window ? std::min(last, first + window) : last) & ~find_mask(first);
    }

    // Whether all queries attend to all keys of a group.
    bool sees_all(int64_t key) const { return (find_queries(key) & find_queries(key + GROUP - 1)) == ~0u; }

    // The groups of keys of a slice that any of the queries attends to: the first one, and the one after the last.
    std::pair<int64_t, int64_t> find_groups(const Slice &slice) const {
        int64_t count = std::min(GROUP, segment.length - query);
        int64_t first = std::max<int64_t>(0, segment.first(query, window) - slice.first) / GROUP;
        int64_t last = std::min(slice.count, segment.last(query + count - 1) - slice.first);
        last = divide_up(std::max<int64_t>(0, last), GROUP);
        return {std::min(first, last), last};
    }
};

// The scores of a group of queries and one of keys, [2, 2] tiles: a row for each key, a column for each query.
struct Scores {
    Tile tiles[2][2];

    Wide read(int64_t key, int64_t half) const { return (Wide)tiles[key / SIDE][half].lines[key % SIDE]; }
};

// 2^x with a relative error of 3e-6, and exactly 1 for 0: an integer power of two, times a minimax polynomial.
inline Wide find_power(Wide x) {
    Wide rest = (Wide)_mm512_reduce_ps((__m512)x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
    Wide sum = rest * 1.342668477e-2f + 5.224247277e-2f;
    sum = (sum * rest + 2.412801981e-1f) * rest + 6.930448413e-1f;
    return (Wide)_mm512_scalef_ps((__m512)(sum * rest + 1.0f), (__m512)x);
}

// Two vectors, rounded.
inline Line round_both(const Wide *numbers) { return (Line)_mm512_cvtne2ps_pbh((__m512)numbers[1], (__m512)numbers[0]); }

inline Wide keep_some(uint32_t mask, Wide numbers) {
    return (Wide)_mm512_maskz_mov_ps(__mmask16(mask), (__m512)numbers);
}

// The larger numbers where a mask has ones; NaN is ignored.
inline Wide find_larger(uint32_t mask, Wide numbers, Wide most) {
    return (Wide)_mm512_mask_max_ps((__m512)most, __mmask16(mask), (__m512)numbers, (__m512)most);
}

inline void add_line(Line line, float *to) { store_wide(load_wide(to) + (Wide)line, to); }

}  // namespace

#endif
