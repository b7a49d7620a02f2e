/* Products of 4-bit weights with 8-bit activations, in exact integer arithmetic within groups of 32 columns.
 *
 * A weight is minimum + step * q with q from 0 to 15; each output has its own step and minimum for every group. So a
 * group's sum is step * (q . x) + minimum * (sum of x), times the scale of x. Panels of 32 outputs hold group after
 * group: the bytes [columns / 4][16][4] with output o in the lower and output o + 16 in the upper half, then 32 steps
 * and minima in bfloat16, the step of an output in the upper half of 32 bits. */
#ifndef HEADSTART_INT4_H
#define HEADSTART_INT4_H

#include "int8.h"

#define GROUP_INT4 32 /* columns; the last group may be shorter */

INLINE int64_t panel_bytes_int4(int64_t columns) {
    return columns * PANEL / 2 + groups_of(columns, GROUP_INT4) * PANEL * 4;
}

/* sums[m][0..31] = x[m] . w.T for one panel and rows from .. from + rows - 1; laid out as in add_lines. */
INLINE void panel_int4(const uint8_t *panel, const quantised *x, int64_t from, int64_t columns, float *sums,
                       int64_t half, ahead next, const int rows) {
    typedef uint8_t bytes __attribute__((vector_size(64), aligned(1), may_alias));
    const bytes lower = 15 - (bytes){};
    f16v low[MOST_ROWS_INT8], high[MOST_ROWS_INT8];
    for (int m = 0; m < rows; m++) low[m] = high[m] = splat(0.0f);
    for (int64_t g = 0, i = 0; i < columns; g++) {
        i16v one[MOST_ROWS_INT8], two[MOST_ROWS_INT8];
        const int64_t last = i + GROUP_INT4 < columns ? i + GROUP_INT4 : columns;
        for (int m = 0; m < rows; m++) one[m] = two[m] = (i16v){};
        const int64_t width = last - i;
        for (const int8_t *q = group_of(x, from, i, width); i < last; i += 4, q += 4, panel += 2 * PANEL) {
            __builtin_prefetch(next.at, 0, 2);
            __builtin_prefetch(next.at + 2 * next.step, 0, 2);
            next.at += 4 * next.step;
            const bytes both = *(const bytes *)panel;
            const bytes a = both & lower, b = (bytes)((u16v)both >> 4) & lower;
            for (int m = 0; m < rows; m++) {
                one[m] = dot4(one[m], (i16v)a, q + m * width);
                two[m] = dot4(two[m], (i16v)b, q + m * width);
            }
        }
        f16v step[2], minimum[2];
        for (int h = 0; h < 2; h++, panel += 2 * PANEL) {
            u16v pair = *(const u16v *)panel;
            step[h] = (f16v)(pair & 0xffff0000u);
            minimum[h] = (f16v)(pair << 16);
        }
        for (int m = 0; m < rows; m++) {
            const int64_t at = g * x->rows + from + m;
            const f16v scale = splat(x->scale[at]), sum = splat(x->scale[at] * (float)x->sum[at]);
            low[m] = fused(__builtin_convertvector(one[m], f16v) * scale, step[0], fused(sum, minimum[0], low[m]));
            high[m] = fused(__builtin_convertvector(two[m], f16v) * scale, step[1], fused(sum, minimum[1], high[m]));
        }
    }
    for (int m = 0; m < rows; m++) {
        *(f16v *)(sums + m * LANES) = low[m];
        *(f16v *)(sums + half + m * LANES) = high[m];
    }
}

#endif
