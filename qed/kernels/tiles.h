// Products of pairs by the tiles of a processor with AMX: 16 rows of 16 pairs, 16 pairs of 16 columns, and their sums.
//
// `Tiles` must live in the thread that multiplies, and nothing else may use the tiles meanwhile.

#pragma once

#include "matrices.h"

#if defined(__AMX_BF16__) && defined(__linux__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__linux__)

constexpr int64_t SIDE = 16;          // rows, pairs and columns of a tile
constexpr int64_t TOGETHER = 2;       // tiles of rows, and of columns, that are multiplied together
constexpr int64_t LEAST = 32;         // width of a head for which tiles are faster than vectors
constexpr int64_t MOST_PAIRS = 320;   // of a row of a left matrix: more than a slice of keys, or a head, has
constexpr int64_t PAIR_ROWS = TOGETHER * SIDE, PAIR_QUERIES = 2 * PAIR_ROWS;  // that are computed together, and of a block
constexpr int64_t LONG_PAIRS = 2048;  // keys from which on blocks backwards are larger
typedef __m512i Line;  // of the processor's cache

constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // Linux's ARCH_REQ_XCOMP_PERM, and the state that it is asked for

// Whether Linux lets this process use tiles.
inline bool has_tiles() {
    static const bool has = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return has;
}

// Whether attention of heads of a width multiplies by tiles.
inline bool fits_tiles(int64_t width) { return width % SIDE == 0 && width >= LEAST && has_tiles(); }

// Sets the tiles of a thread for heads of a width, and releases them afterwards: other libraries set their own.
struct Tiles {
    explicit Tiles(int64_t width) {
        ready = fits_tiles(width);
        if (!ready) return;
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } all;
        for (int i = 0; i < 8; i++) all.bytes[i] = 64, all.rows[i] = SIDE;
        asm volatile("" ::: "memory");
        _tile_loadconfig(&all);
    }
    ~Tiles() {
        if (ready) _tile_release();
        ready = false;
    }

    static inline thread_local bool ready = false;
};

// An operand in the order in which tiles are read: the pairs of each row, or the rows of pairs, that fill whole tiles, and
// the rest, with zeros after them. While a tile of a right operand is multiplied, the processor is asked for some lines of
// what will be read next.
struct Operand {
    const Pair *whole, *rest;
    int64_t stride, rest_stride;
    const Pair *next = nullptr;
    int64_t lines = 0;
};

// The product of tiles of rows and of columns; with `Adds` it is added to `out`. With `Streams` columns are read without
// taking a place in the nearest cache, where the rows stay.
template <bool Adds, int Rows, int Columns, bool Streams = false>
void multiply_tiles(const Operand &left, const Operand &right, int64_t whole, bool has_rest, float *out, int64_t out_row) {
    const int64_t line = out_row * sizeof *out;
    asm volatile("" ::: "memory");  // some compilers do not know that a tile reads memory, or writes it
    if constexpr (Adds) {
        _tile_loadd(0, out, line);
        if constexpr (Columns > 1) _tile_loadd(1, out + SIDE, line);
        if constexpr (Rows > 1) _tile_loadd(2, out + SIDE * out_row, line);
        if constexpr (Rows > 1 && Columns > 1) _tile_loadd(3, out + SIDE * out_row + SIDE, line);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    auto add = [](const Pair *rows, int64_t stride, const Pair *columns, int64_t apart) {
        if constexpr (Streams)
            _tile_stream_loadd(6, columns, apart * sizeof(Pair));
        else
            _tile_loadd(6, columns, apart * sizeof(Pair));
        _tile_loadd(4, rows, stride * sizeof(Pair));
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (Columns > 1) {
            if constexpr (Streams)
                _tile_stream_loadd(7, columns + SIDE, apart * sizeof(Pair));
            else
                _tile_loadd(7, columns + SIDE, apart * sizeof(Pair));
            _tile_dpbf16ps(1, 4, 7);
        }
        if constexpr (Rows > 1) {
            _tile_loadd(5, rows + SIDE * stride, stride * sizeof(Pair));
            _tile_dpbf16ps(2, 5, 6);
            if constexpr (Columns > 1) _tile_dpbf16ps(3, 5, 7);
        }
    };
    for (int64_t pair = 0; pair < whole; pair += SIDE) {
        for (int64_t i = 0; i < right.lines; i++) __builtin_prefetch(right.next + (pair * right.lines + i * SIDE), 0, 2);
        add(left.whole + pair, left.stride, right.whole + pair * right.stride, right.stride);
    }
    if (has_rest) add(left.rest, left.rest_stride, right.rest, right.rest_stride);
    _tile_stored(0, out, line);
    if constexpr (Columns > 1) _tile_stored(1, out + SIDE, line);
    if constexpr (Rows > 1) _tile_stored(2, out + SIDE * out_row, line);
    if constexpr (Rows > 1 && Columns > 1) _tile_stored(3, out + SIDE * out_row + SIDE, line);
    asm volatile("" ::: "memory");
}

// Which of 32 numbers are among the first `count`.
inline uint32_t find_mask(int64_t count) { return count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0; }

// Exchanges rows and columns of 16 lines of pairs.
inline void transpose_lines(Line *lines) {
    Line some[SIDE];
    for (int i = 0; i < SIDE; i += 2) {
        some[i] = _mm512_unpacklo_epi32(lines[i], lines[i + 1]);
        some[i + 1] = _mm512_unpackhi_epi32(lines[i], lines[i + 1]);
    }
    for (int i = 0; i < SIDE; i += 4)
        for (int j = 0; j < 2; j++) {
            lines[i + 2 * j] = _mm512_unpacklo_epi64(some[i + j], some[i + j + 2]);
            lines[i + 2 * j + 1] = _mm512_unpackhi_epi64(some[i + j], some[i + j + 2]);
        }
    for (int i = 0; i < 4; i++) {  // quarter j of line 4 k + i has column 4 j + i of rows 4 k to 4 k + 3
        Line even = _mm512_shuffle_i32x4(lines[i], lines[4 + i], 0x88);
        Line odd = _mm512_shuffle_i32x4(lines[i], lines[4 + i], 0xdd);
        Line next = _mm512_shuffle_i32x4(lines[8 + i], lines[12 + i], 0x88);
        Line last = _mm512_shuffle_i32x4(lines[8 + i], lines[12 + i], 0xdd);
        some[i] = _mm512_shuffle_i32x4(even, next, 0x88);
        some[4 + i] = _mm512_shuffle_i32x4(odd, last, 0x88);
        some[8 + i] = _mm512_shuffle_i32x4(even, next, 0xdd);
        some[12 + i] = _mm512_shuffle_i32x4(odd, last, 0xdd);
    }
    std::copy(some, some + SIDE, lines);
}

// Memory for pairs that begins with a line of the cache.
struct Lines {
    explicit Lines(int64_t pairs) : memory(new Pair[pairs + SIDE]) {}

    Pair *find() { return memory.get() + (-reinterpret_cast<uintptr_t>(memory.get()) % 64) / sizeof(Pair); }

    std::unique_ptr<Pair[]> memory;
};

// Copies `count` of `rows` rows of pairs, with zeros after the last pair of each and after the last row.
inline void copy_pairs(const Pair *from, int64_t stride, int64_t count, int64_t pairs, int64_t rows, int64_t width, Pair *to) {
    std::fill(to, to + rows * width, 0);
    for (int64_t i = 0; i < count; i++) std::memcpy(to + i * width, from + i * stride, pairs * sizeof *to);
}

// Copies `rows` rows of a transposed matrix, with zeros after the last pair of each.
inline void transpose_pairs(Matrix<Pair> left, int64_t rows, int64_t pairs, int64_t width, Pair *to) {
    for (int64_t pair = 0; pair < width; pair += LANES)
        for (int64_t i = 0; i < rows; i += LANES) {
            Vector part[LANES] = {};
            for (int64_t k = 0; k < LANES && pair + k < pairs; k++)
                std::memcpy(&part[k], left.units + (pair + k) * left.column + i, sizeof part[k]);
            transpose_block(part);
            for (int64_t k = 0; k < LANES; k++) std::memcpy(to + (i + k) * width + pair, &part[k], sizeof part[k]);
        }
}

// The left operand of `tiles` tiles of rows, of which `count` rows are there. What tiles cannot read in place is copied.
inline Operand arrange_rows(Matrix<Pair> left, int64_t count, int64_t tiles, int64_t pairs, Pair *copied) {
    int64_t whole = pairs / SIDE * SIDE, padded = (pairs + SIDE - 1) / SIDE * SIDE, rows = tiles * SIDE;
    if (left.column == 1 && count == rows) {
        if (whole < pairs) copy_pairs(left.units + whole, left.row, rows, pairs - whole, rows, SIDE, copied);
        return {left.units, copied, left.row, SIDE};
    }
    if (left.column == 1)
        copy_pairs(left.units, left.row, count, pairs, rows, padded, copied);
    else
        transpose_pairs(left, rows, pairs, padded, copied);
    return {copied, copied + whole, padded, padded};
}

// out[rows, width] = left[rows, pairs] right[pairs, width], or added to it, if tiles compute it; returns whether they do. Of a
// transposed matrix whole tiles of rows are read.
template <bool Adds>
bool multiply_in_tiles(Matrix<Pair> left, int64_t rows, int64_t pairs, const Pair *right, int64_t right_row, int64_t width,
                       float *out, int64_t out_row) {
    int64_t whole = pairs / SIDE * SIDE;
    bool can_read = left.column == 1 || left.row == 1;
    if (!Tiles::ready || width % SIDE || pairs > MOST_PAIRS || !can_read) return false;
    Pair copied[PAIR_ROWS * MOST_PAIRS], rest[SIDE * TOGETHER * SIDE];
    float sums[PAIR_ROWS * TOGETHER * SIDE];  // of rows that fill no tile
    for (int64_t row = 0, count; row < rows; row += count) {
        count = std::min(PAIR_ROWS, rows - row);
        if (count > SIDE && count < PAIR_ROWS) count = SIDE;  // whole tiles need no copy
        int64_t tiles = (count + SIDE - 1) / SIDE;
        Operand own = arrange_rows(left.skip(row), count, tiles, pairs, copied);
        for (int64_t first = 0, step; first < width; first += step) {
            step = std::min(TOGETHER * SIDE, width - first);
            Operand columns{right + first, rest, right_row, step};
            if (whole < pairs)
                copy_pairs(columns.whole + whole * right_row, right_row, pairs - whole, step, SIDE, step, rest);
            auto multiply = tiles > 1 ? step > SIDE ? multiply_tiles<Adds, 2, 2> : multiply_tiles<Adds, 2, 1>
                            : step > SIDE ? multiply_tiles<Adds, 1, 2>
                                          : multiply_tiles<Adds, 1, 1>;
            float *to = out + row * out_row + first;
            if (count == tiles * SIDE) {
                multiply(own, columns, whole, whole < pairs, to, out_row);
                continue;
            }
            for (int64_t i = 0; Adds && i < count; i++) std::memcpy(sums + i * step, to + i * out_row, step * sizeof *to);
            multiply(own, columns, whole, whole < pairs, sums, step);
            for (int64_t i = 0; i < count; i++) std::memcpy(to + i * out_row, sums + i * step, step * sizeof *to);
        }
    }
    return true;
}

#else

constexpr int64_t PAIR_ROWS = TILE, PAIR_QUERIES = 48, LONG_PAIRS = INT64_MAX;

inline bool fits_tiles(int64_t) { return false; }

struct Tiles {
    explicit Tiles(int64_t) {}
};

template <bool Adds>
bool multiply_in_tiles(Matrix<Pair>, int64_t, int64_t, const Pair *, int64_t, int64_t, float *, int64_t) {
    return false;
}

#endif

}  // namespace
