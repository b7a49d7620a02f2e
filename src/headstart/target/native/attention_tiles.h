/* Keys and values on the matrix unit: both lie like weights for it (tiles.h), 32 slots a panel.
 *
 * Keys of one head are panels of 32 outputs, [slots / 32][dim / 32][2][16][16][2]: halves of 16 slots, pairs of columns.
 * Values are [slots / 32][dim / 32][2][16][16][2] too, but halves of 16 columns and pairs of slots, so that the weighed
 * values are sums over slots. A row's logical keys come in panels of 32 from the first one on, and a panel's 32 products
 * are added in one step: keys that lie elsewhere are brought to their logical places first, and those that a row does not
 * see weigh nothing. So a row's sums are the same wherever its keys lie and whoever shares the reading. */
#ifndef HEADSTART_ATTENTION_TILES_H
#define HEADSTART_ATTENTION_TILES_H

#include "attention.h"

#define TILE_ELEMENTS (TILE_BYTES / 2)

/* In two tiles that hold 32 outputs and 32 of the terms of their sums. */
INLINE int64_t tile_at(int64_t output, int64_t term) {
    return output / LANES * TILE_ELEMENTS + term / 2 * PANEL + output % LANES * 2 + term % 2;
}

INLINE int64_t tiles_at(int64_t dim, int64_t slot, int64_t column) {
    return slot / PANEL * PANEL * dim + column / PANEL * 2 * TILE_ELEMENTS;
}

/* Where a key's and a value's element of a slot lies. */
INLINE int64_t key_at(int64_t dim, int64_t slot, int64_t column) {
    return tiles_at(dim, slot, column) + tile_at(slot % PANEL, column % PANEL);
}

INLINE int64_t value_at(int64_t dim, int64_t slot, int64_t column) {
    return tiles_at(dim, slot, column) + tile_at(column % PANEL, slot % PANEL);
}

static void write_key_tiles(uint16_t *keys, int64_t dim, int64_t slot, const float *x, int64_t rows, int64_t row) {
    for (int64_t i = 0; i < dim; i++) keys[key_at(dim, slot, i)] = to_bf16(*element(x, rows, row, i));
}

static void write_value_tiles(uint16_t *values, int64_t dim, int64_t slot, const float *x, int64_t rows, int64_t row) {
    for (int64_t i = 0; i < dim; i++) values[value_at(dim, slot, i)] = to_bf16(*element(x, rows, row, i));
}

#if HAS_TILES
/* Add `panels` panels of values, `step` elements apart, weighed by the halves of panel p on, to the sums of queries m ..
 * for which tiles are shaped. Sums are [2][queries][16], for 32 columns. */
static void add_values(const uint16_t *values, int64_t step, int64_t panels, const halved *weights, int64_t p, int64_t m,
                       float *sums, int fresh) {
    const int64_t rows = weights->rows, half = rows * LANES, stride = rows * TILE_COLUMNS;
    const uint16_t *upper = weights->upper + (p * rows + m) * TILE_COLUMNS;
    const uint16_t *lower = weights->lower + (p * rows + m) * TILE_COLUMNS;
    sums += m * LANES;
    if (fresh) {
        _tile_zero(0);
        _tile_zero(1);
    } else {
        _tile_loadd(0, sums, 4 * LANES);
        _tile_loadd(1, sums + half, 4 * LANES);
    }
    for (; panels > 0; panels--, values += step, upper += stride, lower += stride) {
        for (int l = 0; l < 2 * TILE_ELEMENTS; l += PANEL) __builtin_prefetch(values + step + l, 0, 2);
        _tile_loadd(6, values, 2 * TILE_COLUMNS);
        _tile_loadd(7, values + TILE_ELEMENTS, 2 * TILE_COLUMNS);
        _tile_loadd(4, upper, 2 * TILE_COLUMNS);
        _tile_loadd(5, lower, 2 * TILE_COLUMNS);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
        _tile_dpbf16ps(0, 5, 6);
        _tile_dpbf16ps(1, 5, 7);
    }
    _tile_stored(0, sums, 4 * LANES);
    _tile_stored(1, sums + half, 4 * LANES);
}
#else
INLINE void add_values(const uint16_t *values, int64_t step, int64_t panels, const halved *weights, int64_t p, int64_t m,
                       float *sums, int fresh) {}
#endif

/* add_values for queries m .. end - 1. */
static void add_values_of(const uint16_t *values, int64_t step, int64_t panels, const halved *weights, int64_t p, int64_t m,
                          int64_t end, float *sums, int fresh, int64_t *shaped) {
    for (; m < end; m += TILE_ROWS) {
        const int64_t rows = end - m < TILE_ROWS ? end - m : TILE_ROWS;
        if (rows != *shaped) shape_tiles(*shaped = rows, rows, 2 * TILE_COLUMNS);
        add_values(values, step, panels, weights, p, m, sums, fresh);
    }
}

/* 32 columns of one panel of values with row r's keys in their logical places, in `panel`. */
static void own_panel(const together *t, const cache *c, int64_t r, int64_t key, int64_t column, uint16_t *panel) {
    const uint16_t *values = (const uint16_t *)c->values;
    memcpy(panel, values + value_at(c->dim, key, column), 2 * TILE_BYTES);
    const int64_t end = t->length[r] < key + PANEL ? t->length[r] : key + PANEL;
    for (int64_t own = t->plain[r] > key ? t->plain[r] : key; own < end; own++) {
        const uint16_t *source = values + value_at(c->dim, slot_of(t, r, own), column);
        uint16_t *place = panel + tile_at(0, own % PANEL);
        for (int64_t h = 0; h < 2 * TILE_ELEMENTS; h += TILE_ELEMENTS)
            for (int64_t i = 0; i < 2 * LANES; i += 2) place[h + i] = source[h + i];
    }
}

INLINE int64_t tiled_floats(int64_t total, int64_t keys) { return halved_floats(total, keys) + total * PANEL; }

/* Third step: as `weigh` (attention.h). `memory`, a thread's own, holds tiled_floats(total, keys). */
static void weigh_tiles(const together *t, const cache *c, const runs *read, const room *at, float *memory, int part,
                        int parts) {
    const int64_t total = t->rows * t->group, step = PANEL * c->dim;
    float *sums = memory;
    const halved weights = halve(at->scores, total, keys_read(read), memory + total * PANEL);
    int64_t common = read->to[read->count - 1], shaped = 0;
    for (int64_t r = 0; r < t->rows; r++)
        if (t->plain[r] < t->length[r] && t->plain[r] < common) common = t->plain[r];
    common -= common % PANEL;
    uint16_t own[2 * TILE_ELEMENTS];
    for (int64_t column = part * PANEL; column < c->dim; column += parts * PANEL) {
        const uint16_t *values = (const uint16_t *)c->values + value_at(c->dim, 0, column);
        int64_t p = 0;
        for (int64_t i = 0; i < read->count; i++) {
            const int64_t from = read->from[i], panels = ((read->to[i] < common ? read->to[i] : common) - from) / PANEL;
            add_values_of(values + from / PANEL * step, step, panels, &weights, p, 0, total, sums, i == 0, &shaped);
            p += panels;
        }
        for (int64_t r = 0; r < t->rows; r++)
            for (int64_t key = common; key < t->length[r]; key += PANEL) {
                own_panel(t, c, r, key, column, own);
                __asm__ volatile("" ::: "memory");
                add_values_of(own, 0, 1, &weights, (key - read->skipped) / PANEL, r * t->group, (r + 1) * t->group, sums, 0,
                              &shaped);
            }
        for (int64_t h = 0; h < 2; h++)
            for (int64_t m = 0; m < total; m++)
                *(f16v *)block(at->results, total, m, column + h * LANES) =
                    *(const f16v *)(sums + (h * total + m) * LANES) / splat(at->sums[m]);
    }
}

#endif
