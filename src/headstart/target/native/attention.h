/* Attention of rows over their sequences' keys and values.
 *
 * Keys of one head are panels over slots, [slots / 32][dim][32]; values are [slots][dim], each 32 of them a line; for the
 * matrix unit see attention_tiles.h. Rows of one sequence that follow each other share the reading of what they have in
 * common. Whatever is shared, a row's scores, weights and sums are made by the same operations in the same order: over its
 * keys in logical order. */
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
        if (i >= length) {
            *at = splat(0.0f);
            continue;
        }
        f16v e = exp16((*at - most) * splat(scale));
        if (i < from || i + LANES > length)
            for (int j = 0; j < LANES; j++)
                if (i + j < from || i + j >= length) e[j] = 0.0f;
        *at = e;
        sum = sum + e;
    }
    return sum_lanes(sum);
}

/* Slots that are read, in order: whole panels from[i] .. to[i] - 1. The scores of what is read lie without gaps; the
 * last run reaches to the end, so that a slot in it has its score `skipped` further left. */
typedef struct {
    int64_t count, skipped;
    int64_t *from, *to;
} runs;

INLINE int64_t keys_read(const runs *read) {
    int64_t count = 0;
    for (int64_t i = 0; i < read->count; i++) count += read->to[i] - read->from[i];
    return count;
}

/* Bring query m's scores, which lie by slot, into logical order. */
static void order(const together *t, int64_t m, int64_t skipped, float *scores) {
    const int64_t r = m / t->group, total = t->rows * t->group, extras = t->length[r] - t->plain[r];
    if (!extras) return;
    float by_slot[extras];
    for (int64_t j = 0; j < extras; j++)
        by_slot[j] = *element(scores, total, m, slot_of(t, r, t->plain[r] + j) - skipped);
    for (int64_t j = 0; j < extras; j++) *element(scores, total, m, t->plain[r] - skipped + j) = by_slot[j];
}

/* results[m][column .. column + 31] += the weighed values of row r's keys from `first` on. */
static void add_own(const together *t, const cache *c, int64_t r, int64_t first, int64_t skipped, int64_t column,
                    const float *weights, float *results) {
    const int64_t total = t->rows * t->group;
    for (int64_t m = r * t->group; m < (r + 1) * t->group; m++) {
        f16v *one = (f16v *)block(results, total, m, column), *two = (f16v *)block(results, total, m, column + LANES);
        f16v low = *one, high = *two, a, b;
        for (int64_t key = first; key < t->length[r]; key++) {
            load32(c->values + (slot_of(t, r, key) * c->dim + column) * element_bytes(c->kind), c->kind, &a, &b);
            f16v weight = splat(*element(weights, total, m, key - skipped));
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

INLINE int64_t least(const int64_t *of, int64_t count) {
    int64_t found = of[0];
    for (int64_t i = 1; i < count; i++) found = of[i] < found ? of[i] : found;
    return found;
}

/* Where attention works: results [dim] and scores [slots read], blocked over rows * group, and a sum for each. */
typedef struct {
    float *results, *sums, *scores;
} room;

INLINE int64_t room_floats(int64_t total, int64_t dim, int64_t most_keys) {
    return total * (dim + 1 + most_keys + 2 * PANEL);
}

INLINE room room_in(float *memory, int64_t total, int64_t dim) {
    return (room){memory, memory + total * dim, memory + total * (dim + 1)};
}

/* Attention in three steps, each of which `parts` threads may take a part of once all are through with the step before:
 * results = softmax(scale * queries @ keys.T) @ values over the keys in `read`, which skips none but what all rows have
 * in common. First: scores, by panels of keys; queries are made for the keys, which are `linear` weights. */
static void score(const linear *keys, const runs *read, const inputs *queries, const room *at, int part, int parts) {
    const int64_t total = queries->rows, most = most_rows(keys, total), bytes = tile_bytes(keys, total);
    const int64_t mine = keys_read(read) / PANEL * part / parts, end = keys_read(read) / PANEL * (part + 1) / parts;
    int64_t p = 0, shaped = 0;
    for (int64_t i = 0; i < read->count; i++)
        for (int64_t slot = read->from[i]; slot < read->to[i]; slot += PANEL, p++) {
            if (p < mine || p >= end) continue;
            const char *next = (const char *)keys->panels + (slot / PANEL + 1) * panel_bytes(keys);
            for (int64_t m = 0; m < total; m += most) {
                const int64_t rows = total - m < most ? total - m : most;
                if (bytes && rows != shaped) shape_for(keys, shaped = rows, bytes);
                panel_product(keys, queries, slot / PANEL, m, rows, block(at->scores, total, m, p * PANEL), total * LANES,
                              (ahead){next, PANEL * element_bytes(keys->kind)});
            }
        }
}

/* Second: their softmax, by queries; keys that a query does not see weigh nothing. A window limits each row to its last
 * keys (0: none). */
static void soften_all(const together *t, float scale, int64_t window, const runs *read, const room *at, int part,
                       int parts) {
    const int64_t total = t->rows * t->group, skipped = read->skipped;
    for (int64_t m = part; m < total; m += parts) {
        const int64_t keys = t->length[m / t->group], length = keys - skipped;
        const int64_t unseen = window && keys > window ? keys - window : 0;
        order(t, m, skipped, at->scores);
        at->sums[m] = soften(at->scores, total, m, unseen > skipped ? unseen - skipped : 0, length, keys_read(read), scale);
    }
}

/* Third: the weighed values, by columns part * 32, (part + parts) * 32 ... */
static void weigh(const together *t, const cache *c, const runs *read, const room *at, int part, int parts) {
    const int64_t total = t->rows * t->group, bytes = element_bytes(c->kind), common = least(t->plain, t->rows);
    for (int64_t column = part * PANEL; column < c->dim; column += parts * PANEL) {
        for (int64_t i = 0, key = 0; i < read->count; i++) {
            const int64_t from = read->from[i], to = read->to[i] < common ? read->to[i] : common;
            const char *values = c->values + (from * c->dim + column) * bytes;
            const ahead next = {values + PANEL * c->dim * bytes, c->dim * bytes};
            for (int64_t m = 0; m < total; m += MOST_ROWS)
                add(values, c->dim * bytes, c->kind, block(at->scores, total, m, key), total * LANES, to - from,
                    block(at->results, total, m, column), total * LANES, i == 0, next,
                    total - m < MOST_ROWS ? total - m : MOST_ROWS);
            key += to - from;
        }
        for (int64_t r = 0; r < t->rows; r++)
            add_own(t, c, r, common, read->skipped, column, at->scores, at->results);
        for (int64_t m = 0; m < total; m++) {
            *(f16v *)block(at->results, total, m, column) /= splat(at->sums[m]);
            *(f16v *)block(at->results, total, m, column + LANES) /= splat(at->sums[m]);
        }
    }
}

/* shares[p] = the share of its attention that any of the queries gives to panel p, or a little more; after the second
 * step, nothing skipped. */
static void note_shares(const together *t, const room *at, float *shares) {
    const int64_t total = t->rows * t->group, panels = least(t->plain, t->rows) / PANEL;
    float parts[total];
    for (int64_t m = 0; m < total; m++) parts[m] = 1.0f / at->sums[m];
    for (int64_t p = 0; p < panels; p++) {
        f16v most = splat(0.0f);
        for (int64_t m = 0; m < total; m++) {
            const f16v *low = (const f16v *)block(at->scores, total, m, p * PANEL), *high = low + total;
            most = larger((*low + *high) * splat(parts[m]), most);
        }
        shares[p] = sum_lanes(most);
    }
}

/* Everything that any of the rows sees; a window lets leading panels go unread. */
static void read_all(const together *t, int64_t window, runs *read) {
    const int64_t shortest = least(t->length, t->rows), common = least(t->plain, t->rows);
    const int64_t unread = window && shortest > window ? shortest - window : 0;
    read->from[0] = read->skipped = (unread < common ? unread : common) / PANEL * PANEL;
    read->to[0] = reach(t);
    read->count = 1;
}

/* Keys before a row that are read whatever their share was: those of a draft, and of what was drafted and accepted since
 * the shares were noted. */
#define RECENT 64

/* As read_all, but without the panels whose share was below `least_share`. */
static void read_some(const together *t, const float *shares, float least_share, runs *read) {
    const int64_t recent = (least(t->plain, t->rows) - RECENT) / PANEL;
    int open = 0;
    read->count = read->skipped = 0;
    for (int64_t p = 0; p < recent; p++) {
        if (shares[p] < least_share) {
            read->skipped += PANEL;
            open = 0;
            continue;
        }
        if (!open) read->from[read->count++] = p * PANEL;
        read->to[read->count - 1] = (p + 1) * PANEL;
        open = 1;
    }
    if (!open) read->from[read->count++] = recent > 0 ? recent * PANEL : 0;
    read->to[read->count - 1] = reach(t);
}

#endif
