/* Products of 8-bit weights with 8-bit activations, in exact integer arithmetic within groups of 64 columns.
 *
 * A row's activations are quantised by themselves, symmetrically, with one scale for each group of columns: whatever
 * stands in other rows changes nothing. Weights are stored as w + 128, since the instruction multiplies unsigned by
 * signed bytes; each group's sum starts at -128 times the sum of its activations instead of zero. Panels of 32 outputs:
 * [n / 32][k / 4][32][4]. */
#ifndef HEADSTART_INT8_H
#define HEADSTART_INT8_H

#include "tiles.h"
#include "vector.h"

#define GROUP 64 /* columns; the last group may be shorter */
#ifdef __AVX512F__
#define MOST_ROWS_INT8 6 /* 12 integer and 12 float sums, 2 weights and a broadcast */
#else
#define MOST_ROWS_INT8 2
#endif

typedef struct {
    int8_t *q;       /* [groups][rows][columns of the group] */
    float *scale;    /* [groups][rows] */
    int32_t *sum;    /* [groups][rows], of the bytes */
    int64_t rows;
} quantised;

INLINE int64_t groups_of(int64_t columns, int64_t group) { return (columns + group - 1) / group; }

INLINE int64_t quantised_floats(int64_t rows, int64_t columns, int64_t group) {
    return rows * (columns / 4 + 2 * groups_of(columns, group));
}

/* The bytes of one row's columns i .. i + width - 1, a whole group. */
INLINE int8_t *group_of(const quantised *x, int64_t row, int64_t i, int64_t width) { return x->q + i * x->rows + row * width; }

/* x [columns] blocked over rows, to bytes that lie in `memory`, with one scale for each `group` of columns. */
static quantised quantise(const float *x, int64_t rows, int64_t columns, int64_t group, float *memory) {
    float *scale = memory + rows * columns / 4;
    const quantised out = {(int8_t *)memory, scale, (int32_t *)(scale + rows * groups_of(columns, group)), rows};
    const f16v magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to the nearest integer */
    for (int64_t g = 0; g < groups_of(columns, group); g++)
        for (int64_t m = 0; m < rows; m++) {
            const int64_t first = g * group, last = first + group < columns ? first + group : columns;
            int8_t *bytes = group_of(&out, m, first, last - first);
            f16v most = splat(0.0f);
            for (int64_t i = first; i < last; i += LANES) {
                f16v v = *(const f16v *)block(x, rows, m, i);
                most = larger(larger(v, -v), most);
            }
            float amax = largest_lane(most), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
            i16v sum = {};
            for (int64_t i = first; i < last; i += LANES) {
                f16v v = *(const f16v *)block(x, rows, m, i) * splat(inverse);
                i16v q = __builtin_convertvector((v + magic) - magic, i16v);
                sum += q;
                *(b16v *)(bytes + i - first) = __builtin_convertvector(q, b16v);
            }
            out.scale[g * rows + m] = amax / 127.0f;
            out.sum[g * rows + m] = sum_integers(sum);
        }
    __asm__ volatile("" ::: "memory"); /* compilers are not told that loading a tile reads memory */
    return out;
}

/* sums[o] += w[o][0..3] . x[0..3] for 16 outputs: unsigned times signed bytes, four of either in 32 bits. */
INLINE i16v dot4(i16v sums, i16v w, const int8_t *x) {
#if defined(__AVX512VNNI__)
    int32_t four;
    memcpy(&four, x, 4);
    return (i16v)_mm512_dpbusd_epi32((__m512i)sums, (__m512i)w, _mm512_set1_epi32(four));
#else
    uint8_t bytes[4 * LANES];
    memcpy(bytes, &w, sizeof bytes);
    for (int o = 0; o < LANES; o++)
        for (int j = 0; j < 4; j++) sums[o] += (int32_t)bytes[4 * o + j] * x[j];
    return sums;
#endif
}

/* sums[m][0..31] = x[m] . w.T for one panel and rows from .. from + rows - 1; laid out as in add_lines. */
INLINE void panel_int8(const uint8_t *panel, const quantised *x, int64_t from, int64_t columns, float *sums,
                       int64_t half, ahead next, const int rows) {
    f16v low[MOST_ROWS_INT8], high[MOST_ROWS_INT8];
    for (int m = 0; m < rows; m++) low[m] = high[m] = splat(0.0f);
    for (int64_t g = 0, i = 0; i < columns; g++) {
        i16v one[MOST_ROWS_INT8], two[MOST_ROWS_INT8];
        const int64_t last = i + GROUP < columns ? i + GROUP : columns;
        for (int m = 0; m < rows; m++) one[m] = two[m] = -128 * x->sum[g * x->rows + from + m] - (i16v){};
        const int64_t width = last - i;
        for (const int8_t *q = group_of(x, from, i, width); i < last; i += 4, q += 4, panel += 4 * PANEL) {
            __builtin_prefetch(next.at, 0, 2);
            __builtin_prefetch(next.at + 2 * next.step, 0, 2);
            next.at += 4 * next.step;
            for (int m = 0; m < rows; m++) {
                one[m] = dot4(one[m], *(const i16v *)panel, q + m * width);
                two[m] = dot4(two[m], *(const i16v *)(panel + 4 * LANES), q + m * width);
            }
        }
        for (int m = 0; m < rows; m++) {
            f16v scale = splat(x->scale[g * x->rows + from + m]);
            low[m] = fused(__builtin_convertvector(one[m], f16v), scale, low[m]);
            high[m] = fused(__builtin_convertvector(two[m], f16v), scale, high[m]);
        }
    }
    for (int m = 0; m < rows; m++) {
        *(f16v *)(sums + m * LANES) = low[m];
        *(f16v *)(sums + half + m * LANES) = high[m];
    }
}

/* From how many rows on the matrix unit is the faster way to the same integers, and so to the same sums. */
#define ROWS_FOR_TILES 7

#if HAS_TILES
#define GROUP_PRODUCT(FIRST, SECOND)                                                                                 \
    _tile_zero(FIRST);                                                                                               \
    _tile_zero(SECOND);                                                                                              \
    _tile_loadd(4, q, GROUP);                                                                                        \
    _tile_loadd(6, panel, 4 * PANEL);                                                                                \
    _tile_loadd(7, panel + 4 * LANES, 4 * PANEL);                                                                    \
    _tile_dpbsud(FIRST, 4, 6);                                                                                       \
    _tile_dpbsud(SECOND, 4, 7);                                                                                      \
    _tile_stored(FIRST, one, 4 * LANES);                                                                             \
    _tile_stored(SECOND, two, 4 * LANES);

/* panel_int8 on the matrix unit, for as many rows as the tiles are shaped for. */
static void panel_int8_tiles(const uint8_t *panel, const quantised *x, int64_t from, int64_t columns, float *sums,
                             int64_t half, ahead next, int rows) {
    i16v sums_of[2][2][TILE_ROWS];
    for (int m = 0; m < rows; m++) *(f16v *)(sums + m * LANES) = *(f16v *)(sums + half + m * LANES) = splat(0.0f);
    const int64_t groups = groups_of(columns, GROUP);
    for (int64_t g = 0; g <= groups; g++) {
        if (g < groups) {
            i16v *one = sums_of[g % 2][0], *two = sums_of[g % 2][1];
            const int64_t i = g * GROUP, width = i + GROUP < columns ? GROUP : columns - i;
            const int8_t *q = group_of(x, from, i, width);
            for (int64_t l = 0; l < width; l += 2, next.at += 2 * next.step) __builtin_prefetch(next.at, 0, 2);
            if (width < GROUP) { /* the last group */
                for (int m = 0; m < rows; m++) one[m] = two[m] = (i16v){};
                for (int64_t l = 0; l < width; l += 4)
                    for (int m = 0; m < rows; m++) {
                        one[m] = dot4(one[m], *(const i16v *)(panel + l * PANEL), q + m * width + l);
                        two[m] = dot4(two[m], *(const i16v *)(panel + l * PANEL + 4 * LANES), q + m * width + l);
                    }
            } else if (g % 2) {
                GROUP_PRODUCT(0, 1)
            } else {
                GROUP_PRODUCT(2, 3)
            }
            panel += GROUP * PANEL;
        }
        if (g == 0) continue; /* a group is scaled while the next one is multiplied */
        const i16v *one = sums_of[(g - 1) % 2][0], *two = sums_of[(g - 1) % 2][1];
        for (int m = 0; m < rows; m++) {
            const int64_t at = (g - 1) * x->rows + from + m;
            const f16v scale = splat(x->scale[at]);
            const i16v start = -128 * x->sum[at] - (i16v){};
            f16v *low = (f16v *)(sums + m * LANES), *high = (f16v *)(sums + half + m * LANES);
            *low = fused(__builtin_convertvector(one[m] + start, f16v), scale, *low);
            *high = fused(__builtin_convertvector(two[m] + start, f16v), scale, *high);
        }
    }
}
#else
INLINE void panel_int8_tiles(const uint8_t *panel, const quantised *x, int64_t from, int64_t columns, float *sums,
                             int64_t half, ahead next, int rows) {}
#endif

#endif
