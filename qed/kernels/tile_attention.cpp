// Attention of a packed row in bfloat16 by AMX tiles, forward and backward (arXiv 2205.14135).
//
// Scores have a row for each key and a column for each query: a vector holds numbers of 16 queries, so that their largest
// scores and their sums are vectors, and attention weights ("shares") need not be transposed. Scores and sums are in
// float32; weights and gradients of scores are rounded to bfloat16 for their products, as in torch's attention. The result
// for a query does not depend on other queries.

#include "tile_attention.h"

#include "tile_groups.h"

#ifdef HAS_TILES

namespace {

constexpr int64_t CHUNK = 16;    // groups of keys in the forward pass, after whose scores results are rescaled
constexpr int64_t MEMBERS = 8;   // groups of queries of a block in the backward pass
constexpr int64_t SLICE = 1024;  // keys of a slice in the backward pass: their data stays in the L2 cache
constexpr float LOG_2_E = 1.44269504f, LOWEST = -3.4e38f;

// One head's attention in a segment.
struct Forward {
    const PackedAttention &a;
    const Segment &segment;
    Shape shape{a.width};
    Slice all{0, segment.count()};
    int64_t groups = divide_up(all.count, GROUP);
    Room room{SIDE * SIDE * ((2 * groups + 4) * shape.parts + 6 * CHUNK)};
    Tile *keys = room.take<Tile>(groups * shape.parts), *values = room.take<Tile>(groups * shape.parts);  // rows; turned
    Tile *rows = room.take<Tile>(shape.parts), *queries = room.take<Tile>(shape.parts);
    Tile *results = room.take<Tile>(2 * shape.parts);  // [parts, 2]: a row for each number, a column for each query
    Scores *scores = room.take<Scores>(CHUNK);
    Tile *shares = room.take<Tile>(2 * CHUNK);
    Wide most[2], total[2];  // each query's largest score so far, and its sum of exponentials

    void read(const bfloat16 *key, const bfloat16 *value) {
        for (int64_t group = 0; group < groups; group++) {
            read_group(a, segment, all, group, key, keys + group * shape.parts);
            read_group(a, segment, all, group, value, rows);
            turn_rows(shape, rows, groups, values + group);
        }
    }

    // The attention of `count` queries, whose rows are `stride` numbers apart.
    void attend(int64_t query, int64_t count, const bfloat16 *from, int64_t stride) {
        auto find_row = [&](int64_t i) { return i < count ? from + i * stride : nullptr; };
        read_rows(shape, find_row, rows);
        flip_rows(shape, rows, queries);
        for (int j = 0; j < 2; j++) most[j] = Wide{} + LOWEST, total[j] = Wide{};
        Sight sight{segment, query, a.window};
        auto [begin, end] = sight.find_groups(all);
        for (int64_t next, first = begin; first < end; first = next) {
            next = std::min(end, (first / CHUNK + 1) * CHUNK);  // the same groups for each query
            attend_groups(sight, first, next - first, first > begin);
        }
    }

    // Adds some groups of keys; `begun` says whether there are results of earlier groups.
    void attend_groups(const Sight &sight, int64_t first, int64_t count, bool begun) {
        Operand flipped = find_tiles(queries, 1, 2);
        Wide least = Wide{} + LOWEST, largest[2][2] = {{least, least}, {least, least}};  // of even and odd keys
        for (int64_t i = 0; i < count; i++) {
            multiply_tiles<false>(find_tiles(keys + (first + i) * shape.parts, shape.steps, 1), flipped, shape.steps,
                                  find_sums(scores[i].tiles[0], 1, 2));
            int64_t key = (first + i) * GROUP;
            auto find = sight.sees_all(key) ? &Forward::find_largest<true> : &Forward::find_largest<false>;
            (this->*find)(sight, key, scores[i], largest);
        }
        raise_most(largest, begun);
        for (int64_t i = 0; i < count; i++) {
            int64_t key = (first + i) * GROUP;
            auto compute = sight.sees_all(key) ? &Forward::exponentiate<true> : &Forward::exponentiate<false>;
            (this->*compute)(sight, key, scores[i], shares + 2 * i);
        }
        auto multiply = begun ? multiply_tiles<true> : multiply_tiles<false>;
        for (int64_t part = 0; part < shape.parts; part += 2)
            multiply(find_tiles(values + part * groups + first, groups, 1), find_tiles(shares, 1, 2), count,
                     find_sums(results + 2 * part, 1, 2));
    }

    // Rescales the results of earlier keys when the largest scores grow.
    void raise_most(const Wide (*largest)[2], bool begun) {
        for (int j = 0; j < 2; j++) {
            Wide found = find_larger(~0u, largest[0][j], largest[1][j]), before = most[j];
            most[j] = find_larger(~0u, found, before);
            if (!begun || !_mm512_cmp_ps_mask((__m512)most[j], (__m512)before, _CMP_NEQ_UQ)) continue;
            Wide scale = find_power((before - most[j]) * (a.scaling * LOG_2_E));
            total[j] *= scale;
            for (int64_t part = 0; part < shape.parts; part++)
                for (Line &line : results[2 * part + j].lines) line = (Line)((Wide)line * scale);
        }
    }

    // The larger of a group's scores and the earlier ones.
    template <bool Whole>
    void find_largest(const Sight &sight, int64_t key, const Scores &of_group, Wide (*largest)[2]) {
        Wide found[2][2] = {{largest[0][0], largest[0][1]}, {largest[1][0], largest[1][1]}};
        for (int64_t i = 0; i < GROUP; i++) {
            uint32_t seen = Whole ? ~0u : sight.find_queries(key + i);
            for (int j = 0; j < 2; j++) found[i % 2][j] = find_larger(seen >> j * SIDE, of_group.read(i, j), found[i % 2][j]);
        }
        std::memcpy(largest, found, sizeof found);
    }

    // The exponentials of a group of keys, as two tiles of 16 pairs of keys and 16 queries.
    template <bool Whole>
    void exponentiate(const Sight &sight, int64_t key, const Scores &of_group, Tile *to) {
        const float scaling = a.scaling * LOG_2_E;
        const Wide shift[2] = {most[0], most[1]};
        Wide sums[2] = {};
        for (int64_t i = 0; i < GROUP; i += 2) {
            Wide each[2][2];
            for (int k = 0; k < 2; k++) {
                uint32_t seen = Whole ? ~0u : sight.find_queries(key + i + k);
                for (int j = 0; j < 2; j++) {
                    each[j][k] = find_power((of_group.read(i + k, j) - shift[j]) * scaling);
                    if (!Whole) each[j][k] = keep_some(seen >> j * SIDE, each[j][k]);
                    sums[j] += each[j][k];
                }
            }
            for (int j = 0; j < 2; j++) to[j].lines[i / 2] = interleave(round_both(each[j]));
        }
        for (int j = 0; j < 2; j++) total[j] += sums[j];
    }

    // Writes the results of `count` queries, divided by their sums, and the log of each query's sum of exponentials.
    void write(int64_t count, bfloat16 *out, int64_t stride, float *sums, int64_t sum_stride) {
        float largest[GROUP], totals[GROUP];
        std::memcpy(largest, most, sizeof largest);
        std::memcpy(totals, total, sizeof totals);
        for (int64_t i = 0; i < count; i++) sums[i * sum_stride] = largest[i] * a.scaling + std::log(totals[i]);
        for (float &each : totals) each = 1 / each;
        for (int64_t part = 0; part * SIDE < shape.width; part++)
            for (int64_t j = 0; j < 2; j++) {
                Line *lines = results[2 * part + j].lines;
                transpose_lines(lines);
                for (int64_t i = j * SIDE; i < std::min(count, (j + 1) * SIDE); i++) {
                    Wide numbers = (Wide)lines[i % SIDE] * totals[i];
                    __m256i rounded = (__m256i)_mm512_cvtneps_pbh((__m512)numbers);
                    _mm256_storeu_si256(reinterpret_cast<__m256i *>(out + i * stride + part * SIDE), rounded);
                }
            }
    }
};

// The gradients of one head's queries, and of the keys and values of a slice.
struct Backward {
    const PackedAttention &a;
    const Segment &segment;
    const Slice &slice;
    Shape shape{a.width};
    int64_t groups = divide_up(slice.count, GROUP), size = groups * shape.parts;
    Room room{SIDE * SIDE * (7 * size + (4 * MEMBERS + 3) * shape.parts + 2 * MEMBERS * (groups + 2) + 8)};
    Tile *keys = room.take<Tile>(size), *values = room.take<Tile>(size), *turned = room.take<Tile>(size);  // rows, rows, keys
    Tile *of_keys = room.take<Tile>(2 * size), *of_values = room.take<Tile>(2 * size);  // [groups, 2, parts]
    Tile *queries = room.take<Tile>(MEMBERS * shape.parts), *slopes = room.take<Tile>(MEMBERS * shape.parts);
    Tile *stacked_queries = room.take<Tile>(MEMBERS * shape.parts), *stacked_slopes = room.take<Tile>(MEMBERS * shape.parts);
    Tile *rows = room.take<Tile>(shape.parts), *of_queries = room.take<Tile>(2 * shape.parts);  // [parts, 2]
    Tile *shares = room.take<Tile>(2 * MEMBERS), *of_scores = room.take<Tile>(2 * MEMBERS);   // rows of keys
    Tile *paired = room.take<Tile>(2 * MEMBERS * groups);                                     // of the scores, pairs of keys
    Scores *scores = room.take<Scores>(1), *of_shares = room.take<Scores>(1);
    Wide shifts[MEMBERS][2], means[MEMBERS][2];  // of the exponents, and of the gradients of the attention weights

    void read(const bfloat16 *key, const bfloat16 *value) {
        for (int64_t group = 0; group < groups; group++) {
            read_group(a, segment, slice, group, key, keys + group * shape.parts);
            read_group(a, segment, slice, group, value, values + group * shape.parts);
            turn_rows(shape, keys + group * shape.parts, groups, turned + group);
        }
        std::fill(of_keys, of_keys + 2 * size, Tile{});
        std::fill(of_values, of_values + 2 * size, Tile{});
    }

    // Reads `count` queries of a block, or their gradients, whose rows are `stride` numbers apart.
    void read_block(int64_t count, const bfloat16 *from, int64_t stride, Tile *flipped, Tile *stacked) {
        for (int64_t first = 0; first < count; first += GROUP, flipped += shape.parts, stacked += shape.parts) {
            auto find_row = [&](int64_t i) { return first + i < count ? from + (first + i) * stride : nullptr; };
            read_rows(shape, find_row, rows);
            flip_rows(shape, rows, flipped);
            stack_rows(shape, rows, 1, stacked);
        }
    }

    // Reads the logs of the queries' sums and the means of their gradients, which are `stride` numbers apart.
    void read_sums(int64_t count, const float *sums, const float *mean, int64_t stride) {
        float numbers[2][MEMBERS * GROUP] = {};
        for (int64_t i = 0; i < count; i++) {
            numbers[0][i] = sums[i * stride];
            numbers[1][i] = mean[i * stride] * a.scaling;
        }
        std::memcpy(shifts, numbers[0], sizeof shifts);
        std::memcpy(means, numbers[1], sizeof means);
    }

    // Adds the gradients of `count` queries that were read to `out`, and their parts of the gradients of keys and values.
    void reverse(int64_t query, int64_t count, float *out, int64_t stride) {
        std::pair<int64_t, int64_t> seen[MEMBERS];
        int64_t members = divide_up(count, GROUP);
        for (int64_t i = 0; i < members; i++) seen[i] = Sight{segment, query + i * GROUP, a.window}.find_groups(slice);
        int64_t first = 0, last = members;  // the members that attend to a group of keys
        for (int64_t group = seen[0].first; group < seen[members - 1].second; group++) {
            while (first < members && group >= seen[first].second) first++;
            for (last = members; last > first && group < seen[last - 1].first;) last--;
            reverse_group(query, group, first, last);
        }
        for (int64_t i = 0; i < members; i++)
            if (seen[i].first < seen[i].second)
                add_query_slopes(i, seen[i], count - i * GROUP, out + i * GROUP * stride, stride);
    }

    // Adds the parts of some members of a block to the gradients of a group of keys.
    void reverse_group(int64_t query, int64_t group, int64_t first, int64_t last) {
        int64_t key = slice.first + group * GROUP, at = group * shape.parts;
        for (int64_t i = first; i < last; i++) {
            auto multiply = [&](const Tile *left, const Tile *flipped, Scores *out) {
                multiply_tiles<false>(find_tiles(left + at, shape.steps, 1), find_tiles(flipped + i * shape.parts, 1, 2),
                                      shape.steps, find_sums(out->tiles[0], 1, 2));
            };
            multiply(keys, queries, scores);
            multiply(values, slopes, of_shares);
            Sight sight{segment, query + i * GROUP, a.window};
            auto compute = sight.sees_all(key) ? &Backward::reverse_scores<true> : &Backward::reverse_scores<false>;
            (this->*compute)(sight, key, i, paired + 2 * (i * groups + group));
        }
        for (int64_t part = 0; part < shape.parts; part += 2) {
            auto add = [&](const Tile *left, const Tile *stacked, Tile *out) {
                multiply_tiles<true>(find_tiles(left + 2 * first, 1, 2),
                                     find_tiles(stacked + first * shape.parts + part, 1, shape.parts), last - first,
                                     find_sums(out + 2 * at + part, 1, shape.parts));
            };
            add(shares, stacked_slopes, of_values);
            add(of_scores, stacked_queries, of_keys);
        }
    }

    // The attention weights of a group of keys and the gradients of their scores, as rows; the latter also as pairs of keys.
    template <bool Whole>
    void reverse_scores(const Sight &sight, int64_t key, int64_t member, Tile *pairs) {
        const float scaling = a.scaling;
        const Wide shift[2] = {shifts[member][0], shifts[member][1]}, mean[2] = {means[member][0], means[member][1]};
        Line *own_shares = shares[2 * member].lines, *own_slopes = of_scores[2 * member].lines;  // two tiles each
        for (int64_t i = 0; i < GROUP; i += 2) {
            Line both[2];
            for (int64_t k = 0; k < 2; k++) {
                uint32_t seen = Whole ? ~0u : sight.find_queries(key + i + k);
                Wide share[2], slope[2];
                for (int64_t j = 0; j < 2; j++) {
                    share[j] = find_power((scores->read(i + k, j) * scaling - shift[j]) * LOG_2_E);
                    slope[j] = share[j] * (of_shares->read(i + k, j) * scaling - mean[j]);
                    if (Whole) continue;
                    share[j] = keep_some(seen >> j * SIDE, share[j]);
                    slope[j] = keep_some(seen >> j * SIDE, slope[j]);
                }
                own_shares[i + k] = round_both(share);
                own_slopes[i + k] = both[k] = round_both(slope);
            }
            pairs[0].lines[i / 2] = _mm512_unpacklo_epi16(both[0], both[1]);
            pairs[1].lines[i / 2] = _mm512_unpackhi_epi16(both[0], both[1]);
        }
    }

    // Adds the gradients of a member's `count` queries, from the groups of keys that they attend to.
    void add_query_slopes(int64_t member, std::pair<int64_t, int64_t> seen, int64_t count, float *out, int64_t stride) {
        Operand pairs = find_tiles(paired + 2 * (member * groups + seen.first), 1, 2);
        for (int64_t part = 0; part < shape.parts; part += 2)
            multiply_tiles<false>(find_tiles(turned + part * groups + seen.first, groups, 1), pairs, seen.second - seen.first,
                                  find_sums(of_queries + 2 * part, 1, 2));
        for (int64_t part = 0; part * SIDE < shape.width; part++)
            for (int64_t j = 0; j < 2; j++) {
                Line *lines = of_queries[2 * part + j].lines;
                transpose_lines(lines);
                for (int64_t i = 0; i < SIDE; i++) {
                    int64_t place = i / 4 * 8 + j * 4 + i % 4;  // in the order in which pairs were unpacked
                    if (place < count) add_line(lines[i], out + place * stride + part * SIDE);
                }
            }
    }

    // Adds the gradients of the slice's keys or values to those of all tokens.
    void add_slopes(const Tile *own, float *out) {
        for (int64_t i = 0; i < slice.count; i++)
            for (int64_t part = 0; part * SIDE < shape.width; part++) {
                Line line = own[i / SIDE * shape.parts + part].lines[i % SIDE];
                add_line(line, out + segment.place(slice.first + i) * a.heads * a.width + part * SIDE);
            }
    }
};

}  // namespace

bool attend_in_tiles(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value, float *sums,
                     bfloat16 *out) {
    if (!fits_tiles(a.width)) return false;
    int64_t queries = a.heads * a.grouped, stride = queries * a.width;
    attend_segments(a, [&](const Segment &segment, int64_t head) {
        Tiles tiles;
        Forward forward{a, segment};
        forward.read(key + head * a.width, value + head * a.width);
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip; first < segment.length; first += GROUP) {
                int64_t count = std::min(GROUP, segment.length - first), row = segment.row + first - segment.skip;
                int64_t at = row * stride + own * a.width;
                forward.attend(first, count, query + at, stride);
                forward.write(count, out + at, stride, sums + row * queries + own, queries);
            }
    });
    return true;
}

bool reverse_in_tiles(const PackedAttention &a, const bfloat16 *query, const bfloat16 *key, const bfloat16 *value,
                      const float *sums, const bfloat16 *attended, const bfloat16 *slopes, float *of_query, float *of_key,
                      float *of_value) {
    if (!fits_tiles(a.width)) return false;
    int64_t queries = a.heads * a.grouped, stride = queries * a.width;
    std::vector<float> means = find_means(a, attended, slopes);
    reverse_slices<SLICE>(a, [&](const Segment &segment, const Slice &slice, int64_t head) {
        Tiles tiles;
        Backward backward{a, segment, slice};
        backward.read(key + head * a.width, value + head * a.width);
        for (int64_t own = head * a.grouped; own < (head + 1) * a.grouped; own++)
            for (int64_t first = segment.skip, count; first < segment.length; first += count) {
                count = std::min(MEMBERS * GROUP, segment.length - first);
                if (find_block(segment, slice, first, count, a.window).is_empty()) continue;
                int64_t row = segment.row + first - segment.skip, at = row * stride + own * a.width, sum = row * queries + own;
                backward.read_block(count, query + at, stride, backward.queries, backward.stacked_queries);
                backward.read_block(count, slopes + at, stride, backward.slopes, backward.stacked_slopes);
                backward.read_sums(count, sums + sum, means.data() + sum, queries);
                backward.reverse(first, count, of_query + at, stride);
            }
        backward.add_slopes(backward.of_keys, of_key + head * a.width);
        backward.add_slopes(backward.of_values, of_value + head * a.width);
    });
    return true;
}

#endif
