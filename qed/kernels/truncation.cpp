// Scales logits by the temperature, and excludes unlikely tokens before a draw: by their rank (top-k), by their cumulative
// probability (top-p) or by their own probability (min-p).

#include <functional>
#include <limits>

#include "vectors.h"

namespace {

constexpr int64_t BLOCK = 256;               // tokens of a block, which is skipped if its largest logit is too small
constexpr int64_t LARGE = 1 << 15;           // logits from which on several threads share the rows
constexpr float GAPS[] = {10, 20, INFINITY};  // distances below the largest logit within which the last token is searched
constexpr double ROUNDING = 1e-7;            // a sum that falls short of its share by this little has reached it

struct Token {
    float logit, weight;
};

// The smallest logit of the tokens that stay, and how many of the tokens with that logit stay: the first ones.
struct Boundary {
    float least;
    int64_t ties;
};

// The logits of a row, and the largest one of each block and of the row.
struct Row {
    const float *logits;
    int64_t size;
    const float *tops;
    float largest;
};

// Writes logits over the temperature, and the largest one of each block; returns the largest of all.
template <typename T>
float scale(const T *logits, int64_t size, float temperature, float *out, float *tops) {
    float largest = -INFINITY;
    for (int64_t first = 0; first < size; first += BLOCK) {
        Wide most = Wide{} - INFINITY;
        for (int64_t i = first; i < std::min(first + BLOCK, size); i += WIDE) {
            Wide scaled = load_wide(logits + i, size - i, -INFINITY) / temperature;
            store_wide(scaled, out + i, size - i);
            most = scaled > most ? scaled : most;
        }
        tops[first / BLOCK] = find_largest(most);
        largest = std::max(largest, tops[first / BLOCK]);
    }
    return largest;
}

inline Wide weigh(const Row &row, int64_t i) {
    return exponential(load_wide(row.logits + i, row.size - i, -INFINITY) - row.largest);
}

// Copies the tokens with at least some logit, with or without their weights; returns how many there are.
template <bool Weighs>
int64_t collect(const Row &row, float least, Token *to) {
    int64_t count = 0;
    for (int64_t first = 0; first < row.size; first += BLOCK) {
        if (!(row.tops[first / BLOCK] >= least)) continue;
        int64_t own = std::min(BLOCK, row.size - first);
        float weights[BLOCK] = {};
        for (int64_t i = 0; Weighs && i < own; i += WIDE) store_wide(weigh(row, first + i), weights + i);
        for (int64_t i = 0; i < own; i++) {
            to[count] = {row.logits[first + i], weights[i]};
            count += row.logits[first + i] >= least;
        }
    }
    return count;
}

double add_weights(const Row &row) {
    Doubles sums = {};
    for (int64_t i = 0; i < row.size; i += WIDE) sums = add_to(sums, weigh(row, i));
    return add_up(sums);
}

double add_weights(const Token *tokens, int64_t count) {
    double sum = 0;
    for (int64_t i = 0; i < count; i++) sum += tokens[i].weight;
    return sum;
}

// The logit of the `count`-th most likely token, or minus infinity if there are fewer.
float find_last(const Row &row, int64_t count, Token *tokens) {
    int64_t found = 0, blocks = (row.size + BLOCK - 1) / BLOCK;
    if (count <= blocks) {  // at least `count` tokens have the largest logit of that block or more
        float *tops = reinterpret_cast<float *>(tokens);
        std::copy(row.tops, row.tops + blocks, tops);
        std::nth_element(tops, tops + count - 1, tops + blocks, std::greater<float>());
        float least = tops[count - 1];
        found = collect<false>(row, least, tokens);
    }
    for (float gap : GAPS)
        if (found < count) found = collect<false>(row, row.largest - gap, tokens);
    if (found < count) return -INFINITY;  // the others are NaN
    auto is_before = [](const Token &one, const Token &other) { return one.logit > other.logit; };
    std::nth_element(tokens, tokens + count - 1, tokens + found, is_before);
    return tokens[count - 1].logit;
}

// The boundary of the fewest most likely tokens that together reach a sum of weights. Pivots are from pseudo-random places
// that depend on the count alone: in nearly sorted tokens, a pivot from the ends and the middle could leave nearly all
// tokens on one side.
Boundary divide(Token *tokens, int64_t count, double wanted) {
    Token *begin = tokens, *end = tokens + count;
    Boundary found = {-INFINITY, INT64_MAX};
    uint64_t state = count;
    auto pick = [&] {
        state = state * 6364136223846793005u + 1442695040888963407u;
        return begin[(state >> 33) % (end - begin)].logit;
    };
    for (double before = 0; begin < end;) {
        float one = pick(), two = pick(), three = pick();
        float pivot = std::max(std::min(one, two), std::min(std::max(one, two), three));
        Token *equal = std::partition(begin, end, [=](const Token &one) { return one.logit > pivot; });
        Token *below = std::partition(equal, end, [=](const Token &one) { return one.logit == pivot; });
        double above = before + add_weights(begin, equal - begin), until = above + add_weights(equal, below - equal);
        if (above >= wanted) {
            end = equal;
            continue;
        }
        found = {pivot, INT64_MAX};
        if (until >= wanted) {
            int64_t ties = std::ceil((wanted - above) / equal->weight);
            if (ties < below - equal) found.ties = std::max<int64_t>(1, ties);
            break;
        }
        before = until;
        begin = below;
    }
    return found;
}

// The boundary of the most likely tokens that have a share of the probability of all tokens with at least some logit.
Boundary find_nucleus(const Row &row, float least, double share, Token *tokens) {
    bool is_cut = least > -INFINITY;
    int64_t count = is_cut ? collect<true>(row, least, tokens) : 0;
    double total = is_cut ? add_weights(tokens, count) : add_weights(row);
    if (!(total > 0)) return {least, INT64_MAX};  // NaN
    double wanted = std::max(share * total * (1 - ROUNDING), std::numeric_limits<double>::min());  // the first one stays
    if (!is_cut)
        for (float gap : GAPS) {
            count = collect<true>(row, row.largest - gap, tokens);
            if (add_weights(tokens, count) >= wanted) break;
        }
    return divide(tokens, count, wanted);
}

void cut(const Row &row, const Boundary &boundary, float *logits) {
    for (int64_t i = 0; i < row.size; i += WIDE) {
        Wide own = load_wide(logits + i, row.size - i);
        store_wide(own < boundary.least ? Wide{} - INFINITY : own, logits + i, row.size - i);
    }
    int64_t left = boundary.ties;
    for (int64_t i = 0; left < INT64_MAX && i < row.size; i++)
        if (logits[i] == boundary.least && left-- <= 0) logits[i] = -INFINITY;
}

template <typename T>
void shape(const T *scores, int64_t rows, int64_t stride, int64_t size, float temperature, int64_t most, double share, float gap,
           int64_t threads, float *out) {
    bool cuts_by_number = most > 0 && most < size;
#pragma omp parallel for num_threads(threads) if (threads > 1 && rows * size > LARGE)
    for (int64_t number = 0; number < rows; number++) {
        int64_t blocks = (size + BLOCK - 1) / BLOCK;
        float *tops = find_room(blocks + 2 * size), *logits = out + number * size;
        Token *tokens = reinterpret_cast<Token *>(tops + blocks);
        Row row = {logits, size, tops, scale(scores + number * stride, size, temperature, logits, tops)};
        if (!std::isfinite(row.largest)) continue;
        Boundary boundary = {-INFINITY, INT64_MAX};
        if (cuts_by_number) boundary.least = find_last(row, most, tokens);
        if (share < 1) boundary = find_nucleus(row, boundary.least, share, tokens);
        if (row.largest - gap > boundary.least) boundary = {row.largest - gap, INT64_MAX};
        if (boundary.least > -INFINITY) cut(row, boundary, logits);
    }
}

}  // namespace

extern "C" {

// Writes logits, [rows, size], over the temperature, and minus infinity for tokens that are not among the `most` likely ones
// (0 for all), or not among the fewest most likely ones with a share of the remaining probability, or more than `gap` below
// the largest. The most likely token stays.
void shape_float32(const float *scores, int64_t rows, int64_t stride, int64_t size, float temperature, int64_t most, double share,
                   float gap, int64_t threads, float *out) {
    shape(scores, rows, stride, size, temperature, most, share, gap, threads, out);
}

void shape_bfloat16(const bfloat16 *scores, int64_t rows, int64_t stride, int64_t size, float temperature, int64_t most,
                    double share, float gap, int64_t threads, float *out) {
    shape(scores, rows, stride, size, temperature, most, share, gap, threads, out);
}
}
