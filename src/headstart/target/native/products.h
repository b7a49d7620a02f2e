/* Matrix products of a few rows with panels of 32 outputs: [n / 32][k][32], so that one pass over k feeds 32 sums
 * without any horizontal addition. Every row's sum runs over k in order, whatever the number of rows. */
#ifndef HEADSTART_PRODUCTS_H
#define HEADSTART_PRODUCTS_H

#include "int4.h"
#include "int8.h"
#include "tiles.h"
#include "vector.h"

typedef struct {
    const void *panels;
    const float *scale; /* per output, I8 only */
    const float *bias;  /* per output or NULL */
    int64_t n, k;       /* n is a multiple of 32, k of 16 */
    int64_t kind;
} linear;

/* sums[m][0..31] (+)= sum over lines l of x[m][l] * line(l)[0..31], for a constant number of rows. Line l lies at
 * lines + l * line_bytes; 16 lines further on the x of all rows lie x_step floats further. The two halves of the sums
 * lie half floats apart, rows 16 floats. */
INLINE void add_lines(const char *lines, int64_t line_bytes, int kind, const float *x, int64_t x_step, int64_t count,
                      float *sums, int64_t half, int fresh, ahead next, const int rows) {
    f16v low[MOST_ROWS], high[MOST_ROWS];
    for (int m = 0; m < rows; m++) {
        low[m] = fresh ? splat(0.0f) : *(f16v *)(sums + m * LANES);
        high[m] = fresh ? splat(0.0f) : *(f16v *)(sums + half + m * LANES);
    }
    for (; count > 0; count -= LANES, x += x_step) {
        int64_t here = count < LANES ? count : LANES;
        for (int64_t l = 0; l < here; l++) {
            f16v a, b;
            load32(lines, kind, &a, &b);
            lines += line_bytes;
            __builtin_prefetch(next.at, 0, 2);
            next.at += next.step;
            for (int m = 0; m < rows; m++) {
                f16v v = splat(x[m * LANES + l]);
                low[m] = fused(a, v, low[m]);
                high[m] = fused(b, v, high[m]);
            }
        }
    }
    for (int m = 0; m < rows; m++) {
        *(f16v *)(sums + m * LANES) = low[m];
        *(f16v *)(sums + half + m * LANES) = high[m];
    }
}

#define CASE(N) case N: add_lines(lines, line_bytes, KIND, x, x_step, count, sums, half, fresh, next, N); break;
#if MOST_ROWS > 4
#define CASES CASE(1) CASE(2) CASE(3) CASE(4) CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
#define CASES CASE(1) CASE(2) CASE(3) CASE(4)
#endif
#define DEFINE(NAME, KIND_)                                                                                          \
    static void NAME(const char *lines, int64_t line_bytes, const float *x, int64_t x_step, int64_t count,           \
                     float *sums, int64_t half, int fresh, ahead next, int rows) {                                   \
        enum { KIND = KIND_ };                                                                                       \
        switch (rows) { CASES }                                                                                      \
    }
DEFINE(add_lines_f32, F32)
DEFINE(add_lines_bf16, BF16)

/* add_lines for any number of rows, at most MOST_ROWS. */
INLINE void add(const char *lines, int64_t line_bytes, int kind, const float *x, int64_t x_step, int64_t count,
                float *sums, int64_t half, int fresh, ahead next, int rows) {
    if (kind == BF16) add_lines_bf16(lines, line_bytes, x, x_step, count, sums, half, fresh, next, rows);
    else add_lines_f32(lines, line_bytes, x, x_step, count, sums, half, fresh, next, rows);
}

#define BYTES_CASE(OF, N) case N: OF(panel, x, from, columns, sums, half, next, N); break;
#if MOST_ROWS_INT8 > 2
#define BYTES_CASES(OF)                                                                                              \
    BYTES_CASE(OF, 1) BYTES_CASE(OF, 2) BYTES_CASE(OF, 3) BYTES_CASE(OF, 4) BYTES_CASE(OF, 5) BYTES_CASE(OF, 6)
#else
#define BYTES_CASES(OF) BYTES_CASE(OF, 1) BYTES_CASE(OF, 2)
#endif
#define DEFINE_BYTES(NAME, OF)                                                                                       \
    static void NAME(const uint8_t *panel, const quantised *x, int64_t from, int64_t columns, float *sums,           \
                     int64_t half, ahead next, int rows) {                                                           \
        switch (rows) { BYTES_CASES(OF) }                                                                            \
    }
DEFINE_BYTES(add_int8, panel_int8)
DEFINE_BYTES(add_int4, panel_int4)

enum then { STORE, ADD, SWIGLU, LOGITS };

INLINE int64_t panel_bytes(const linear *w) {
    if (w->kind == I4) return panel_bytes_int4(w->k);
    return (w->kind == TILES ? tiles_of(w->k) * TILE_COLUMNS : w->k) * PANEL * element_bytes(w->kind);
}

INLINE int64_t first_panel(const linear *w, int me, int threads) { return w->n / PANEL * me / threads; }

/* Where to read ahead while tile `t` of `tiles` goes over panel `p`. Arithmetic hides memory only if the next panel comes
 * in evenly meanwhile: at the end of a share that is the first panel of what this thread computes next. The processor's
 * own prefetching ends with every page of 4 KiB. */
INLINE ahead read_ahead(const linear *w, const linear *following, int64_t p, int64_t last, int64_t t, int64_t tiles,
                        int me, int threads) {
    const int64_t bytes = panel_bytes(w), line = bytes / w->k;
    const char *next = (const char *)w->panels + (p + 1) * bytes;
    if (p + 1 == last)
        next = (const char *)following->panels + first_panel(following, me, threads) * panel_bytes(following);
    return (ahead){next + t * bytes / tiles, line / tiles};
}

/* Rows taken through all panels before the next ones: what they and a share of the weights take stays in the cache. */
#define MOST_AT_ONCE 96

/* Activations as a kind of weights wants them. */
typedef struct {
    const float *floats;
    quantised bytes;
    halved halves;
    int64_t rows;
} inputs;

INLINE int64_t inputs_floats(int64_t rows, int64_t columns) {
    const int64_t bytes = quantised_floats(rows, columns, GROUP_INT4), halves = halved_floats(rows, columns);
    return bytes > halves ? bytes : halves;
}

/* x is [w->k] blocked over rows; `memory` holds inputs_floats(rows, w->k) and has to stay. */
INLINE inputs inputs_for(const linear *w, const float *x, int64_t rows, float *memory) {
    inputs out = {.floats = x, .rows = rows};
    if (w->kind == I8) out.bytes = quantise(x, rows, w->k, GROUP, memory);
    if (w->kind == I4) out.bytes = quantise(x, rows, w->k, GROUP_INT4, memory);
    if (w->kind == TILES) out.halves = halve(x, rows, w->k, memory);
    return out;
}

/* Bytes of a row that the matrix unit takes at a time, 0 where it is not used. */
INLINE int64_t tile_bytes(const linear *w, int64_t rows) {
    if (w->kind == TILES) return 2 * TILE_COLUMNS;
    return have_tiles && w->kind == I8 && rows >= ROWS_FOR_TILES ? GROUP : 0;
}

/* How many of `rows` rows one call of panel_product takes. */
INLINE int64_t most_rows(const linear *w, int64_t rows) {
    if (w->kind == TILES) return MOST_ROWS_TILES;
    if (tile_bytes(w, rows)) return TILE_ROWS;
    return w->kind == I8 || w->kind == I4 ? MOST_ROWS_INT8 : MOST_ROWS;
}

/* Shape this thread's tiles for panel_product with so many rows. */
INLINE void shape_for(const linear *w, int64_t rows, int64_t bytes) {
    const int64_t first = first_tile(rows);
    shape_tiles(first, w->kind == TILES && first < rows ? rows - first : first, bytes);
}

/* sums[m][0..31] = x[m] . w.T for panel p and rows from .. from + rows - 1, for which tiles are shaped where they are used;
 * laid out as in add_lines. */
INLINE void panel_product(const linear *w, const inputs *x, int64_t p, int64_t from, int rows, float *sums, int64_t half,
                          ahead next) {
    const char *panel = (const char *)w->panels + p * panel_bytes(w);
    if (w->kind == TILES) panel_tiles(panel, &x->halves, from, w->k, sums, half, next, rows);
    else if (w->kind == I8 && tile_bytes(w, x->rows))
        panel_int8_tiles((const uint8_t *)panel, &x->bytes, from, w->k, sums, half, next, rows);
    else if (w->kind == I8) add_int8((const uint8_t *)panel, &x->bytes, from, w->k, sums, half, next, rows);
    else if (w->kind == I4) add_int4((const uint8_t *)panel, &x->bytes, from, w->k, sums, half, next, rows);
    else
        add(panel, PANEL * element_bytes(w->kind), w->kind, x->floats + from * LANES, x->rows * LANES, w->k, sums, half, 1,
            next, rows);
}

/* y = x @ w.T for this thread's share of the panels; then stored, added to y, gated into half as many columns, or
 * stored row by row. x is [w->k] blocked over rows, y over y_rows (row by row: y_rows is the length of a row). `memory`
 * holds inputs_floats(rows, w->k). */
static void product(const linear *w, const float *x, int64_t rows, float *y, int64_t y_rows, enum then then,
                    const linear *following, float *memory, int me, int threads) {
    int64_t first = first_panel(w, me, threads), last = first_panel(w, me + 1, threads);
    const int64_t most = most_rows(w, rows), bytes = tile_bytes(w, rows), lots = (rows + MOST_AT_ONCE - 1) / MOST_AT_ONCE;
    float tile[MOST_ROWS_TILES * PANEL];
    const int64_t half = MOST_ROWS_TILES * LANES;
    const inputs in = inputs_for(w, x, rows, memory);
    int64_t shaped = 0;
    for (int64_t i = 0, panels = last - first; i < lots * panels; i++) {
        const int64_t p = first + i % panels, lot = rows * (i / panels) / lots, end = rows * (i / panels + 1) / lots;
        const int64_t tiles = (end - lot + most - 1) / most;
        for (int64_t t = 0; t < tiles; t++) {
            int64_t from = lot + (end - lot) * t / tiles, count = lot + (end - lot) * (t + 1) / tiles - from;
            const ahead next = read_ahead(w, following, p, last, t, tiles, me, threads);
            if (bytes && count != shaped) shape_for(w, shaped = count, bytes);
            panel_product(w, &in, p, from, count, tile, half, next);
            for (int64_t m = 0; m < count; m++) {
                f16v low = *(f16v *)(tile + m * LANES), high = *(f16v *)(tile + half + m * LANES);
                if (w->scale) {
                    low *= *(const f16v *)(w->scale + p * PANEL);
                    high *= *(const f16v *)(w->scale + p * PANEL + LANES);
                }
                if (w->bias) {
                    low += *(const f16v *)(w->bias + p * PANEL);
                    high += *(const f16v *)(w->bias + p * PANEL + LANES);
                }
                if (then == SWIGLU) {
                    *(f16v *)block(y, y_rows, from + m, p * LANES) = low / (splat(1.0f) + exp16(-low)) * high;
                } else if (then == LOGITS) {
                    *(f16v *)(y + (from + m) * y_rows + p * PANEL) = low;
                    *(f16v *)(y + (from + m) * y_rows + p * PANEL + LANES) = high;
                } else {
                    f16v *one = (f16v *)block(y, y_rows, from + m, p * PANEL);
                    f16v *two = (f16v *)block(y, y_rows, from + m, p * PANEL + LANES);
                    if (then == ADD) low = *one + low, high = *two + high;
                    *one = low;
                    *two = high;
                }
            }
        }
    }
}

#endif
