// Products of pairs by the AMX tiles of a CPU: 16 rows of 16 pairs, 16 pairs of 16 columns, and their sums.
//
// `Tiles` must live in the thread that multiplies, and nothing else may use the tiles in the meantime.

#pragma once

#include "matrices.h"

#if defined(__AMX_BF16__) && defined(__AVX512BF16__) && defined(__AVX512DQ__) && defined(__linux__)
#define HAS_TILES
#include <sys/syscall.h>
#include <unistd.h>
#endif

namespace {

#ifdef HAS_TILES

constexpr int64_t SIDE = 16;          // rows, pairs and columns of a tile
constexpr int64_t TOGETHER = 2;       // tiles of rows, and of columns, that are multiplied together
constexpr int64_t LEAST = 32;         // the smallest width of a head for which tiles are faster than vectors
constexpr int64_t GROUP = TOGETHER * SIDE;  // rows, or columns, that are multiplied together
typedef __m512i Line;  // a cache line

constexpr long REQUEST = 0x1023, TILE_DATA = 18;  // Linux's ARCH_REQ_XCOMP_PERM, and the state to request

// Whether Linux lets this process use tiles.
inline bool has_tiles() {
    static const bool has = syscall(SYS_arch_prctl, REQUEST, TILE_DATA) == 0;
    return has;
}

// Whether attention with heads of a width uses tiles.
inline bool fits_tiles(int64_t width) { return width % SIDE == 0 && width >= LEAST && has_tiles(); }

// Configures the tiles of a thread, and releases them afterwards, because other libraries configure their own.
struct Tiles {
    Tiles() {
        has_tiles();  // requests the permission from Linux
        struct alignas(64) {
            uint8_t palette = 1, start = 0, reserved[14] = {};
            uint16_t bytes[16] = {};
            uint8_t rows[16] = {};
        } all;
        for (int i = 0; i < 8; i++) all.bytes[i] = 64, all.rows[i] = SIDE;
        asm volatile("" ::: "memory");
        _tile_loadconfig(&all);
    }
    ~Tiles() { _tile_release(); }
};

// The operand of a product: at each step two tiles, of rows of pairs or of pairs of columns. Distances count pairs: `stride`
// between the lines of a tile, `other` from the first tile to the second, `step` to those of the next step. While a tile of
// columns is multiplied, `lines` of what will be read next are prefetched.
struct Operand {
    const Pair *first;
    int64_t stride, other, step;
    const Pair *next = nullptr;
    int64_t lines = 0;
};

// Where sums of products are written: the first tile, whose lines are `stride` numbers apart, and the distances to the tiles
// beside and below it.
struct Sums {
    float *first;
    int64_t stride, beside, below;
};

// The product of tiles of rows and of columns; with `Adds` it is added to `out`. With `Streams` columns are read without
// displacing the rows from the L1 cache.
template <bool Adds, int Rows = TOGETHER, bool Streams = false>
inline void multiply_tiles(const Operand &left, const Operand &right, int64_t steps, const Sums &out) {
    const int64_t line = out.stride * sizeof(float);
    const int64_t left_line = left.stride * sizeof(Pair), right_line = right.stride * sizeof(Pair);
    asm volatile("" ::: "memory");  // some compilers do not know that tile instructions read and write memory
    if constexpr (Adds) {
        _tile_loadd(0, out.first, line);
        _tile_loadd(1, out.first + out.beside, line);
        if constexpr (Rows > 1) _tile_loadd(2, out.first + out.below, line);
        if constexpr (Rows > 1) _tile_loadd(3, out.first + out.below + out.beside, line);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    const Pair *rows = left.first, *columns = right.first, *next = right.next;
    for (int64_t i = 0; i < steps; i++, rows += left.step, columns += right.step) {
        for (int64_t j = 0; j < right.lines; j++, next += SIDE) __builtin_prefetch(next, 0, 2);
        if constexpr (Streams)
            _tile_stream_loadd(6, columns, right_line);
        else
            _tile_loadd(6, columns, right_line);
        _tile_loadd(4, rows, left_line);
        _tile_dpbf16ps(0, 4, 6);
        if constexpr (Streams)
            _tile_stream_loadd(7, columns + right.other, right_line);
        else
            _tile_loadd(7, columns + right.other, right_line);
        _tile_dpbf16ps(1, 4, 7);
        if constexpr (Rows > 1) {
            _tile_loadd(5, rows + left.other, left_line);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, out.first, line);
    _tile_stored(1, out.first + out.beside, line);
    if constexpr (Rows > 1) _tile_stored(2, out.first + out.below, line);
    if constexpr (Rows > 1) _tile_stored(3, out.first + out.below + out.beside, line);
    asm volatile("" ::: "memory");
}

// Which of 32 numbers are among the first `count`.
inline uint32_t find_mask(int64_t count) { return count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0; }

// Transposes 16 lines of pairs.
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

// Memory for pairs, aligned to a cache line.
struct Lines {
    explicit Lines(int64_t pairs) : memory(new Pair[pairs + SIDE]) {}

    Pair *find() { return memory.get() + (-reinterpret_cast<uintptr_t>(memory.get()) % 64) / sizeof(Pair); }

    std::unique_ptr<Pair[]> memory;
};

#else

inline bool fits_tiles(int64_t) { return false; }

#endif

}  // namespace
