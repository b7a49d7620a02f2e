/* The largest of a row's logits, and the panels they lie in. */
#ifndef HEADSTART_BEST_H
#define HEADSTART_BEST_H

#include "vector.h"

INLINE int any_above(const float *x, float bound) {
#if defined(__AVX512F__)
    return _mm512_cmp_ps_mask(_mm512_loadu_ps(x), _mm512_set1_ps(bound), _CMP_GT_OQ) != 0;
#else
    int found = 0;
    for (int i = 0; i < LANES; i++) found |= x[i] > bound;
    return found;
#endif
}

static void insert(float *values, int64_t *ids, int64_t count, float value, int64_t id) {
    int64_t at = count - 1;
    for (; at > 0 && value > values[at - 1]; at--) {
        values[at] = values[at - 1];
        ids[at] = ids[at - 1];
    }
    values[at] = value;
    ids[at] = id;
}

/* The largest of n numbers, largest first, the lower index first on ties. */
static void largest(const float *x, int64_t n, int64_t count, float *values, int64_t *ids) {
    int64_t i = 0;
    for (int64_t j = 0; j < count; j++) values[j] = -INFINITY;
    for (; i + LANES <= n; i += LANES)
        if (any_above(x + i, values[count - 1]))
            for (int64_t j = i; j < i + LANES; j++)
                if (x[j] > values[count - 1]) insert(values, ids, count, x[j], j);
    for (; i < n; i++)
        if (x[i] > values[count - 1]) insert(values, ids, count, x[i], i);
}

static void largest_ids(const float *x, int64_t n, int64_t count, int64_t *ids) {
    float values[count];
    largest(x, n, count, values, ids);
}

/* Panels of a row that the exact head computes again. With a head of 4 bits the likeliest token was in one of the best
 * eight panels at each of 2,878 positions, and was the likeliest itself at 91 % of them. */
#define EXACT_PANELS 16

/* The panels of one row's logits that hold the largest, as many as there are up to EXACT_PANELS. */
static void best_panels(const float *logits, int64_t panels, int64_t *best) {
    float values[EXACT_PANELS];
    for (int64_t i = 0; i < EXACT_PANELS; i++) values[i] = -INFINITY, best[i] = 0;
    for (int64_t p = 0; p < panels; p++) {
        const f16v *row = (const f16v *)(logits + p * PANEL);
        const float value = largest_lane(larger(row[0], row[1]));
        if (value > values[EXACT_PANELS - 1]) insert(values, best, EXACT_PANELS, value, p);
    }
}

#endif
