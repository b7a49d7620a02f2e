/* Attention of rows over their sequences' keys and values.
 *
 * Keys of one head are panels over slots, [slots / 32][dim][32]; values are [slots][dim], each 32 of them a line. Rows
 * of one sequence that follow each other share the reading of what they have in common. Whatever is shared, a row's
 * scores, weights and sums are made by the same operations in the same order: over its keys in logical order. */
#ifndef HEADSTART_ATTENTION_H
#define HEADSTART_ATTENTION_H

#include "vector.h"
#include "products.h"

/* One head dimension and its keys and values; slots are counted from the sequence's first. */
typedef struct {
    const char *keys, *values;
    int64_t dim, kind;
} cache;

/* The rows attended to together: `rows` of one sequence times `group` query heads that share a key head. Row r attends
 * to logical keys 0 .. length[r] - 1; the first plain[r] lie in slots of the same number, the others in
 * extra[extra_at[r] ..] - start. */
typedef struct {
    int64_t rows, group, start;
    const int64_t *length, *plain, *extra_at, *extra;
} together;

INLINE int64_t slot_of(const together *t, int64_t r, int64_t key) {
    return key < t->plain[r] ? key : t->extra[t->extra_at[r] + key - t->plain[r]] - t->start;
}

static void write_key(void *keys, int kind, int64_t dim, int64_t slot, const float *x, int64_t rows, int64_t row) {
    int64_t at = slot / PANEL * PANEL * dim, j = slot % PANEL;
    if (kind == BF16) {
        uint16_t *out = (uint16_t *)keys + at + 2 * (j % LANES) + j / LANES;
        for (int64_t i = 0; i < dim; i++) out[i * PANEL] = to_bf16(*element(x, rows, row, i));
    } else {
        float *out = (float *)keys + at + j;
        for (int64_t i = 0; i < dim; i++) out[i * PANEL] = *element(x, rows, row, i);
    }
}

static void write_value(void *values, int kind, int64_t dim, int64_t slot, const float *x, int64_t rows, int64_t row) {
    for (int64_t i = 0; i < dim; i++) {
        float v = *element(x, rows, row, i);
        if (kind == BF16) ((uint16_t *)values)[slot * dim + i / PANEL * PANEL + 2 * (i % LANES) + i % PANEL / LANES] = to_bf16(v);
        else ((float *)values)[slot * dim + i] = v;
    }
}

/* Softmax weights, not yet divided by their sum, which is returned: exp(scale * (score - largest)) for keys
 * from .. length - 1, zero for the others of the first `padded`. Scores are blocked over `rows`. */
static float soften(float *scores, int64_t rows, int64_t row, int64_t from, int64_t length, int64_t padded, float scale) {
    f16v best = splat(-INFINITY);
    for (int64_t i = from / LANES * LANES; i < length; i += LANES) {
        f16v v = *(const f16v *)block(scores, rows, row, i);
        if (i < from || i + LANES > length)
            for (int j = 0; j < LANES; j++)
                if (i + j < from || i + j >= length) v[j] = -INFINITY;
        best = larger(v, best);
    }
    const f16v most = splat(largest_lane(best));
    f16v sum = splat(0.0f);
    for (int64_t i = 0; i < padded; i += LANES) {
        f16v *at = (f16v *)block(scores, rows, row, i);
        f16v e = exp16((*at - most) * splat(scale));
        if (i < from || i + LANES > length)
            for (int j = 0; j < LANES; j++)
                if (i + j < from || i + j >= length) e[j] = 0.0f;
        *at = e;
        sum = sum + e;
    }
    return sum_lanes(sum);
}

/* Bring the scores of row r, which lie by slot, into logical order. */
static void order(const together *t, int64_t r, float *scores) {
    const int64_t total = t->rows * t->group, extras = t->length[r] - t->plain[r];
    if (!extras) return;
    float by_slot[extras];
    for (int64_t m = r * t->group; m < (r + 1) * t->group; m++) {
        for (int64_t j = 0; j < extras; j++) by_slot[j] = *element(scores, total, m, slot_of(t, r, t->plain[r] + j));
        for (int64_t j = 0; j < extras; j++) *element(scores, total, m, t->plain[r] + j) = by_slot[j];
    }
}

/* results[m] += the weighed values of row r's keys from `first` on. */
static void add_own(const together *t, const cache *c, int64_t r, int64_t first, const float *weights, float *results) {
    const int64_t total = t->rows * t->group;
    for (int64_t m = r * t->group; m < (r + 1) * t->group; m++)
        for (int64_t column = 0; column < c->dim; column += PANEL) {
            f16v *one = (f16v *)block(results, total, m, column), *two = (f16v *)block(results, total, m, column + LANES);
            f16v low = *one, high = *two, a, b;
            for (int64_t key = first; key < t->length[r]; key++) {
                load32(c->values + (slot_of(t, r, key) * c->dim + column) * element_bytes(c->kind), c->kind, &a, &b);
                f16v weight = splat(*element(weights, total, m, key));
                low = fused(a, weight, low);
                high = fused(b, weight, high);
            }
            *one = low;
            *two = high;
        }
}

/* How many slots attend must score to reach every key of these rows. */
static int64_t reach(const together *t) {
    int64_t most = 0;
    for (int64_t r = 0; r < t->rows; r++) {
        most = t->plain[r] > most ? t->plain[r] : most;
        for (int64_t key = t->plain[r]; key < t->length[r]; key++)
            most = slot_of(t, r, key) >= most ? slot_of(t, r, key) + 1 : most;
    }
    return (most + PANEL - 1) / PANEL * PANEL;
}

/* Floats that attend needs to work in. */
INLINE int64_t attend_floats(int64_t total, int64_t dim, int64_t most_keys) {
    return total * (2 * dim + 1 + most_keys + 2 * PANEL);
}

/* results = softmax(scale * queries @ keys.T) @ values, all blocked over rows * group. A window limits each row to its
 * last keys (0: none). work holds the queries already, [dim] blocked; returns where the results lie in it. */
static const float *attend(const together *t, const cache *c, float scale, int64_t window, float *work) {
    const int64_t total = t->rows * t->group, slots = reach(t), bytes = element_bytes(c->kind);
    const float *queries = work;
    float *results = work + total * c->dim, *sums = results + total * c->dim, *scores = sums + total;
    int64_t common = t->plain[0], shortest = t->length[0]; /* keys all rows have in the same slots */
    for (int64_t r = 1; r < t->rows; r++) {
        common = t->plain[r] < common ? t->plain[r] : common;
        shortest = t->length[r] < shortest ? t->length[r] : shortest;
    }
    /* a window lets leading panels go unread; they must hold something finite all the same */
    int64_t unread = window && shortest > window ? shortest - window : 0;
    unread = (unread < common ? unread : common) / PANEL * PANEL;
    memset(scores, 0, unread * total * sizeof(float));
    for (int64_t at = unread; at < slots; at += PANEL) {
        const char *panel = c->keys + at * c->dim * bytes;
        const ahead next = {panel + c->dim * PANEL * bytes, PANEL * bytes};
        for (int64_t m = 0; m < total; m += MOST_ROWS)
            add(panel, PANEL * bytes, c->kind, queries + m * LANES, total * LANES, c->dim, block(scores, total, m, at),
                total * LANES, 1, next, total - m < MOST_ROWS ? total - m : MOST_ROWS);
    }
    for (int64_t r = 0; r < t->rows; r++) {
        int64_t length = t->length[r], from = window && length > window ? length - window : 0;
        order(t, r, scores);
        for (int64_t m = r * t->group; m < (r + 1) * t->group; m++)
            sums[m] = soften(scores, total, m, from, length, (length + LANES - 1) / LANES * LANES, scale);
    }
    for (int64_t column = 0; column < c->dim; column += PANEL) {
        const char *values = c->values + (unread * c->dim + column) * bytes;
        const ahead next = {values + PANEL * c->dim * bytes, c->dim * bytes};
        for (int64_t m = 0; m < total; m += MOST_ROWS)
            add(values, c->dim * bytes, c->kind, block(scores, total, m, unread), total * LANES, common - unread,
                block(results, total, m, column), total * LANES, 1, next, total - m < MOST_ROWS ? total - m : MOST_ROWS);
    }
    for (int64_t r = 0; r < t->rows; r++) add_own(t, c, r, common, scores, results);
    for (int64_t m = 0; m < total; m++)
        for (int64_t i = 0; i < c->dim; i += LANES) *(f16v *)block(results, total, m, i) /= splat(sums[m]);
    return results;
}

#endif
