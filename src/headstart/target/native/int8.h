/* Products of 8-bit weights with 8-bit activations, in exact integer arithmetic within groups of 64 columns.
 *
 * A row's activations are quantised by themselves, symmetrically, with one scale for each group of columns: whatever
 * stands in other rows changes nothing. Weights are stored as w + 128, since the instruction multiplies unsigned by
 * signed bytes; each group's sum starts at -128 times the sum of its activations instead of zero. Panels of 32 outputs:
 * [n / 32][k / 4][32][4]. */
#ifndef HEADSTART_INT8_H
#define HEADSTART_INT8_H

#include "vector.h"

#define GROUP 64 /* columns; the last group may be shorter */
#ifdef __AVX512F__
#define MOST_ROWS_INT8 6 /* 12 integer and 12 float sums, 2 weights and a broadcast */
#else
#define MOST_ROWS_INT8 2
#endif

typedef struct {
    int8_t *q;       /* [columns] blocked over rows */
    float *scale;    /* [groups][rows] */
    int32_t *sum;    /* [groups][rows], of the bytes */
    int64_t rows;
} quantised;

INLINE int64_t groups_of(int64_t columns, int64_t group) { return (columns + group - 1) / group; }

INLINE int64_t quantised_floats(int64_t rows, int64_t columns, int64_t group) {
    return rows * (columns / 4 + 2 * groups_of(columns, group));
}

/* x [columns] blocked over rows, to bytes that lie in `memory`, with one scale for each `group` of columns. */
static quantised quantise(const float *x, int64_t rows, int64_t columns, int64_t group, float *memory) {
    float *scale = memory + rows * columns / 4;
    const quantised out = {(int8_t *)memory, scale, (int32_t *)(scale + rows * groups_of(columns, group)), rows};
    const f16v magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to the nearest integer */
    for (int64_t g = 0; g < groups_of(columns, group); g++)
        for (int64_t m = 0; m < rows; m++) {
            int64_t last = (g + 1) * group < columns ? (g + 1) * group : columns;
            f16v most = splat(0.0f);
            for (int64_t i = g * group; i < last; i += LANES) {
                f16v v = *(const f16v *)block(x, rows, m, i);
                most = larger(larger(v, -v), most);
            }
            float amax = largest_lane(most), inverse = amax > 0.0f ? 127.0f / amax : 0.0f;
            i16v sum = {};
            for (int64_t i = g * group; i < last; i += LANES) {
                f16v v = *(const f16v *)block(x, rows, m, i) * splat(inverse);
                i16v q = __builtin_convertvector((v + magic) - magic, i16v);
                sum += q;
                *(b16v *)(out.q + i * rows + m * LANES) = __builtin_convertvector(q, b16v);
            }
            out.scale[g * rows + m] = amax / 127.0f;
            out.sum[g * rows + m] = sum_integers(sum);
        }
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
        for (; i < last; i += LANES) {
            const int8_t *q = x->q + i * x->rows + from * LANES;
            for (int l = 0; l < LANES; l += 4, panel += 4 * PANEL) {
                __builtin_prefetch(next.at, 0, 2);
                __builtin_prefetch(next.at + 2 * next.step, 0, 2);
                next.at += 4 * next.step;
                for (int m = 0; m < rows; m++) {
                    one[m] = dot4(one[m], *(const i16v *)panel, q + m * LANES + l);
                    two[m] = dot4(two[m], *(const i16v *)(panel + 4 * LANES), q + m * LANES + l);
                }
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

#endif
