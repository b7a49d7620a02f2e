/* The forward pass of a llama-shaped decoder over flat rows, in plain C with vector extensions.
 *
 * Every row is computed by the same sequence of floating-point operations whatever its neighbours: sums run over the
 * inner dimension in one fixed order, work is split between threads by outputs only, and tiles of rows differ in how
 * many rows share a load, never in arithmetic. So rows are bitwise independent by construction.
 *
 * Weights and keys lie in panels of 32 outputs, [n / 32][k][32], so that one pass over k feeds 32 sums without any
 * horizontal addition. In 16-bit panels element j of 32 lies at 2 * (j % 16) + j / 16: one load yields both halves by a
 * shift and a mask. Activations and sums are float32 throughout; weights and the KV cache are float32 or bfloat16,
 * weights also int8 with one scale per output.
 *
 * Knows numbers and layouts. Does not know tokenizers, sequences, requests or where weights come from.
 */
#include <math.h>
#include <omp.h>
#include <stdint.h>
#include <string.h>
#if defined(__AVX512F__)
#include <immintrin.h>
#endif

typedef float f16v __attribute__((vector_size(64), aligned(4), may_alias));
typedef uint32_t u16v __attribute__((vector_size(64), aligned(2), may_alias));
typedef int32_t i16v __attribute__((vector_size(64), aligned(4), may_alias));
typedef int8_t b16v __attribute__((vector_size(16), aligned(1), may_alias));

#define INLINE static inline __attribute__((always_inline))
#define LANES 16
#define PANEL 32
#ifdef __AVX512F__
#define MOST_ROWS 12 /* 24 sums, 2 weights and a broadcast fill 32 registers */
#else
#define MOST_ROWS 4
#endif

enum kind { F32 = 0, BF16 = 1, I8 = 2 };

typedef struct {
    const void *panels;
    const float *scale; /* per output, I8 only */
    const float *bias;  /* per output or NULL */
    int64_t n, k;       /* n is a multiple of 32 */
    int64_t kind;
} linear;

typedef struct {
    linear qkv, o, gate_up, down; /* gate_up: panels of 16 gates and their 16 ups */
    const float *attention_norm, *mlp_norm, *q_norm, *k_norm;
    void *keys, *values;
    int64_t window; /* 0: all keys */
} layer;

typedef struct {
    int64_t layers, hidden, heads, kv_heads, dim, inner, vocab;
    float eps, scale;
    int64_t embed_kind, kv_kind, slots;
    const void *embed; /* [vocab][hidden] */
    const float *cosines, *sines; /* [positions][dim] */
    const float *norm;
    linear head;
    const layer *layer;
} model;

/* One step. Row r attends to logical keys 0 .. length[r] - 1. The first plain[r] of them lie in consecutive slots from
 * start[r] on; the rest in slots extra[extra_at[r] ..]. Rows that follow each other with the same start and no extras
 * are attended to together. */
typedef struct {
    int64_t rows, wanted, most_keys;
    const int64_t *ids, *positions, *slots, *start, *length, *plain, *extra_at, *extra, *want;
    float *logits;  /* [wanted][head.n] */
    float *shared;  /* see shared_floats */
    float *private; /* threads x private_floats */
} step;

/* ---- small vector helpers ------------------------------------------------------------------------------------- */

INLINE f16v splat(float x) { return x - (f16v){}; }

/* a * b + c, rounded once. Spelled out, since a compiler may fuse it for one number of rows and not for another. */
INLINE f16v fused(f16v a, f16v b, f16v c) {
#if defined(__AVX512F__)
    return (f16v)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)c);
#else
    for (int i = 0; i < LANES; i++) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
#endif
}

INLINE f16v from_i8(const int8_t *p) {
#if defined(__AVX512F__)
    return (f16v)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p)));
#else
    return __builtin_convertvector(__builtin_convertvector(*(const b16v *)p, i16v), f16v);
#endif
}

INLINE float sum_lanes(f16v v) {
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) s[i] += s[i + width];
    return s[0];
}

/* exp on 16 lanes: 2^n * p(r), |r| <= ln2 / 2, polynomial of Cephes' expf (Moshier). About 1 ulp. */
INLINE f16v exp16(f16v x) {
    const f16v low = splat(-87.0f), high = splat(88.0f);
    i16v below = x < low, above = x > high;
    x = (f16v)(((i16v)x & ~below) | ((i16v)low & below));
    x = (f16v)(((i16v)x & ~above) | ((i16v)high & above));
    f16v t = x * splat(1.44269504088896341f);
    const f16v magic = splat(12582912.0f); /* 1.5 * 2^23: adding it rounds to the nearest integer */
    f16v rounded = (t + magic) - magic;
    i16v n = __builtin_convertvector(rounded, i16v);
    f16v r = x - rounded * splat(0.693359375f);
    r = r - rounded * splat(-2.12194440e-4f);
    f16v p = splat(1.9875691500e-4f);
    p = p * r + splat(1.3981999507e-3f);
    p = p * r + splat(8.3334519073e-3f);
    p = p * r + splat(4.1665795894e-2f);
    p = p * r + splat(1.6666665459e-1f);
    p = p * r + splat(5.0000001201e-1f);
    p = p * r * r + r + splat(1.0f);
    return (f16v)((i16v)p + (n << 23));
}

INLINE float from_bf16(uint16_t x) {
    uint32_t bits = (uint32_t)x << 16;
    float out;
    memcpy(&out, &bits, 4);
    return out;
}

INLINE uint16_t to_bf16(float x) { /* round to nearest, ties to even; inputs are finite */
    uint32_t bits;
    memcpy(&bits, &x, 4);
    return (uint16_t)((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

/* The 32 elements of one line of a panel, as two vectors. */
INLINE void load32(const void *panel, int64_t line, int kind, f16v *low, f16v *high) {
    if (kind == BF16) {
        u16v pair = *(const u16v *)((const uint16_t *)panel + line * PANEL);
        *low = (f16v)(pair << 16);
        *high = (f16v)(pair & 0xffff0000u);
    } else if (kind == F32) {
        const float *p = (const float *)panel + line * PANEL;
        *low = *(const f16v *)p;
        *high = *(const f16v *)(p + LANES);
    } else {
        const int8_t *p = (const int8_t *)panel + line * PANEL;
        *low = from_i8(p);
        *high = from_i8(p + LANES);
    }
}

INLINE int64_t element_bytes(int kind) { return kind == F32 ? 4 : kind == BF16 ? 2 : 1; }

/* ---- matrix products ------------------------------------------------------------------------------------------ */

/* out[m][0..31] = sum over lines l of x[m][l] * panel[l][0..31], for a constant number of rows. */
INLINE void panel_rows(const void *panel, int kind, const float *x, int64_t stride, int64_t lines, float *out,
                       const int rows) {
    f16v low[MOST_ROWS], high[MOST_ROWS];
    for (int m = 0; m < rows; m++) low[m] = high[m] = splat(0.0f);
    const char *ahead = (const char *)panel + 2048;
    const int64_t line_bytes = PANEL * element_bytes(kind);
    for (int64_t l = 0; l < lines; l++) {
        f16v a, b;
        load32(panel, l, kind, &a, &b);
        __builtin_prefetch(ahead + l * line_bytes);
        for (int m = 0; m < rows; m++) {
            f16v v = splat(x[m * stride + l]);
            low[m] = fused(a, v, low[m]);
            high[m] = fused(b, v, high[m]);
        }
    }
    for (int m = 0; m < rows; m++) {
        *(f16v *)(out + m * PANEL) = low[m];
        *(f16v *)(out + m * PANEL + LANES) = high[m];
    }
}

#define CASE(N) case N: panel_rows(panel, KIND, x, stride, lines, out, N); break;
#define DEFINE(NAME, KIND_)                                                                                          \
    static void NAME(const void *panel, const float *x, int64_t stride, int64_t lines, float *out, int rows) {       \
        enum { KIND = KIND_ };                                                                                       \
        switch (rows) {                                                                                              \
            CASE(1) CASE(2) CASE(3) CASE(4) MORE                                                                     \
        }                                                                                                            \
    }
#if MOST_ROWS > 4
#define MORE CASE(5) CASE(6) CASE(7) CASE(8) CASE(9) CASE(10) CASE(11) CASE(12)
#else
#define MORE
#endif
DEFINE(panel_f32, F32)
DEFINE(panel_bf16, BF16)
DEFINE(panel_i8, I8)

INLINE void panel_product(const void *panel, int kind, const float *x, int64_t stride, int64_t lines, float *out,
                          int rows) {
    if (kind == BF16) panel_bf16(panel, x, stride, lines, out, rows);
    else if (kind == F32) panel_f32(panel, x, stride, lines, out, rows);
    else panel_i8(panel, x, stride, lines, out, rows);
}

enum then { STORE, ADD, SWIGLU };

/* y = x @ w.T for this thread's share of the panels; then stored, added to y, or gated into half as many columns. */
static void product(const linear *w, const float *x, int64_t rows, float *y, int64_t y_stride, enum then then, int me,
                    int threads) {
    int64_t panels = w->n / PANEL, first = panels * me / threads, last = panels * (me + 1) / threads;
    int64_t tiles = (rows + MOST_ROWS - 1) / MOST_ROWS;
    float tile[MOST_ROWS * PANEL];
    for (int64_t p = first; p < last; p++) {
        const char *panel = (const char *)w->panels + p * w->k * PANEL * element_bytes(w->kind);
        for (int64_t t = 0; t < tiles; t++) {
            int64_t from = rows * t / tiles, count = rows * (t + 1) / tiles - from;
            panel_product(panel, w->kind, x + from * w->k, w->k, w->k, tile, count);
            for (int64_t m = 0; m < count; m++) {
                f16v low = *(f16v *)(tile + m * PANEL), high = *(f16v *)(tile + m * PANEL + LANES);
                if (w->scale) {
                    low *= *(const f16v *)(w->scale + p * PANEL);
                    high *= *(const f16v *)(w->scale + p * PANEL + LANES);
                }
                if (w->bias) {
                    low += *(const f16v *)(w->bias + p * PANEL);
                    high += *(const f16v *)(w->bias + p * PANEL + LANES);
                }
                float *out = y + (from + m) * y_stride + p * (then == SWIGLU ? LANES : PANEL);
                if (then == SWIGLU) {
                    *(f16v *)out = low / (splat(1.0f) + exp16(-low)) * high;
                } else if (then == ADD) {
                    *(f16v *)out += low;
                    *(f16v *)(out + LANES) += high;
                } else {
                    *(f16v *)out = low;
                    *(f16v *)(out + LANES) = high;
                }
            }
        }
    }
}

/* ---- norms, rotation, keys and values ------------------------------------------------------------------------- */

/* RMSNorm (Zhang & Sennrich 2019). n is a multiple of 16. */
static void rms_norm(const float *x, const float *weight, int64_t n, float eps, float *out) {
    f16v sum = splat(0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        f16v v = *(const f16v *)(x + i);
        sum = sum + v * v;
    }
    float factor = 1.0f / sqrtf(sum_lanes(sum) / (float)n + eps);
    for (int64_t i = 0; i < n; i += LANES)
        *(f16v *)(out + i) = *(const f16v *)(x + i) * splat(factor) * *(const f16v *)(weight + i);
}

/* Rotary embedding (Su et al. 2021), halves rotated as transformers does. dim is a multiple of 32. */
static void rotate(float *x, const float *c, const float *s, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        f16v a = *(f16v *)(x + i), b = *(f16v *)(x + half + i);
        *(f16v *)(x + i) = a * *(const f16v *)(c + i) - b * *(const f16v *)(s + i);
        *(f16v *)(x + half + i) = b * *(const f16v *)(c + half + i) + a * *(const f16v *)(s + half + i);
    }
}

/* Keys of one head are panels over slots, [slots / 32][dim][32]; values are [slots][dim], each 32 of them a line. */
static void write_key(void *keys, int kind, int64_t dim, int64_t slot, const float *x) {
    int64_t at = slot / PANEL * PANEL * dim, j = slot % PANEL;
    if (kind == BF16) {
        uint16_t *out = (uint16_t *)keys + at + 2 * (j % LANES) + j / LANES;
        for (int64_t i = 0; i < dim; i++) out[i * PANEL] = to_bf16(x[i]);
    } else {
        float *out = (float *)keys + at + j;
        for (int64_t i = 0; i < dim; i++) out[i * PANEL] = x[i];
    }
}

static void write_value(void *values, int kind, int64_t dim, int64_t slot, const float *x) {
    if (kind == BF16) {
        uint16_t *out = (uint16_t *)values + slot * dim;
        for (int64_t i = 0; i < dim; i++) out[i / PANEL * PANEL + 2 * (i % LANES) + i % PANEL / LANES] = to_bf16(x[i]);
    } else {
        memcpy((float *)values + slot * dim, x, dim * sizeof(float));
    }
}

/* ---- attention ------------------------------------------------------------------------------------------------ */

/* Softmax of scale * scores[0 .. length) with the keys before `from` masked; what lies behind, up to `padded`, becomes
 * zero. Returns the sum the weights are yet to be divided by. */
static float soften(float *scores, int64_t from, int64_t length, int64_t padded, float scale) {
    f16v best = splat(-INFINITY);
    int64_t i0 = from;
    for (; i0 + LANES <= length; i0 += LANES) {
        f16v v = *(const f16v *)(scores + i0);
        i16v more = v > best;
        best = (f16v)(((i16v)v & more) | ((i16v)best & ~more));
    }
    float most = best[0];
    for (int j = 1; j < LANES; j++) most = best[j] > most ? best[j] : most;
    for (; i0 < length; i0++) most = scores[i0] > most ? scores[i0] : most;
    f16v sum = splat(0.0f);
    for (int64_t i = 0; i < padded; i += LANES) {
        f16v e = exp16((*(f16v *)(scores + i) - splat(most)) * splat(scale));
        if (i < from || i + LANES > length)
            for (int j = 0; j < LANES; j++)
                if (i + j < from || i + j >= length) e[j] = 0.0f;
        *(f16v *)(scores + i) = e;
        sum = sum + e;
    }
    return sum_lanes(sum);
}

/* out[m][0 .. dim) = sum over keys j of weight[m][j] * value(j), for a constant number of rows, 32 columns at a time. */
INLINE void weigh_rows(const void *values, int kind, int64_t dim, const int64_t *slots, int64_t start, int64_t keys,
                       const float *weights, int64_t stride, float *out, const int rows) {
    for (int64_t c = 0; c < dim; c += PANEL) {
        f16v low[MOST_ROWS], high[MOST_ROWS];
        for (int m = 0; m < rows; m++) low[m] = high[m] = splat(0.0f);
        for (int64_t j = 0; j < keys; j++) {
            f16v a, b;
            int64_t slot = slots ? slots[j] : start + j;
            load32((const char *)values + (slot * dim + c) * element_bytes(kind), 0, kind, &a, &b);
            for (int m = 0; m < rows; m++) {
                f16v v = splat(weights[m * stride + j]);
                low[m] = fused(a, v, low[m]);
                high[m] = fused(b, v, high[m]);
            }
        }
        for (int m = 0; m < rows; m++) {
            *(f16v *)(out + m * dim + c) = low[m];
            *(f16v *)(out + m * dim + c + LANES) = high[m];
        }
    }
}

#define WCASE(N) case N: weigh_rows(values, KIND, dim, slots, start, keys, weights, stride, out, N); break;
#define WDEFINE(NAME, KIND_)                                                                                         \
    static void NAME(const void *values, int64_t dim, const int64_t *slots, int64_t start, int64_t keys,             \
                     const float *weights, int64_t stride, float *out, int rows) {                                   \
        enum { KIND = KIND_ };                                                                                       \
        switch (rows) {                                                                                              \
            WCASE(1) WCASE(2) WCASE(3) WCASE(4) WMORE                                                                \
        }                                                                                                            \
    }
#if MOST_ROWS > 4
#define WMORE WCASE(5) WCASE(6) WCASE(7) WCASE(8) WCASE(9) WCASE(10) WCASE(11) WCASE(12)
#else
#define WMORE
#endif
WDEFINE(weigh_f32, F32)
WDEFINE(weigh_bf16, BF16)

/* One key head for `count` rows from `row` on that share start and have no extras, or for one row with extras. `work`
 * holds queries, scores, sums and results: see private_floats. */
static void attend(const model *md, const layer *ly, const step *st, const float *qkv, float *out, int64_t head,
                   int64_t row, int64_t count, float *work) {
    const int64_t dim = md->dim, group = md->heads / md->kv_heads, width = (md->heads + 2 * md->kv_heads) * dim;
    const int64_t total = count * group, last = row + count - 1;
    const int64_t keys = st->length[last], extras = keys - st->plain[last];
    int64_t furthest = st->start[row] + st->plain[last]; /* one past the last slot to score */
    for (int64_t i = 0; i < extras; i++) {
        int64_t slot = st->extra[st->extra_at[last] + i] + 1;
        furthest = slot > furthest ? slot : furthest;
    }
    const int64_t reach = (furthest - st->start[row] + PANEL - 1) / PANEL * PANEL; /* start is a multiple of 32 */
    const int64_t padded = (keys + LANES - 1) / LANES * LANES;
    const int64_t stride = reach > padded ? reach : padded;
    const char *head_keys = (const char *)ly->keys + head * md->slots * dim * element_bytes(md->kv_kind);
    const char *head_values = (const char *)ly->values + head * md->slots * dim * element_bytes(md->kv_kind);
    float *queries = work, *results = queries + total * dim, *sums = results + total * dim, *scores = sums + total;

    for (int64_t r = 0; r < count; r++)
        memcpy(queries + r * group * dim, qkv + (row + r) * width + head * group * dim, group * dim * sizeof(float));
    /* a window lets leading panels go unread; they must hold something finite all the same */
    int64_t unread = 0;
    if (ly->window && keys - (count - 1) > ly->window)
        unread = (keys - (count - 1) - ly->window) / PANEL * PANEL;
    for (int64_t m = 0; m < total; m++) memset(scores + m * stride, 0, unread * sizeof(float));
    float tile[MOST_ROWS * PANEL];
    for (int64_t at = unread; at < reach; at += PANEL) {
        const char *panel = head_keys + (st->start[row] + at) * dim * element_bytes(md->kv_kind);
        for (int64_t m = 0; m < total; m += MOST_ROWS) {
            int rows = total - m < MOST_ROWS ? (int)(total - m) : MOST_ROWS;
            panel_product(panel, md->kv_kind, queries + m * dim, dim, dim, tile, rows);
            for (int i = 0; i < rows; i++) memcpy(scores + (m + i) * stride + at, tile + i * PANEL, PANEL * 4);
        }
    }
    int64_t chosen[extras ? keys : 1];
    if (extras) { /* bring scores into logical order; slots behind the run are read before they are overwritten */
        float by_slot[extras];
        for (int64_t j = 0; j < st->plain[last]; j++) chosen[j] = st->start[row] + j;
        for (int64_t j = 0; j < extras; j++) chosen[st->plain[last] + j] = st->extra[st->extra_at[last] + j];
        for (int64_t m = 0; m < total; m++) {
            float *s = scores + m * stride;
            for (int64_t j = 0; j < extras; j++) by_slot[j] = s[st->extra[st->extra_at[last] + j] - st->start[row]];
            memcpy(s + st->plain[last], by_slot, extras * sizeof(float));
        }
    }
    for (int64_t r = 0; r < count; r++) {
        int64_t length = st->length[row + r], from = ly->window && length > ly->window ? length - ly->window : 0;
        for (int64_t g = 0; g < group; g++)
            sums[r * group + g] = soften(scores + (r * group + g) * stride, from, length, padded, md->scale);
    }
    for (int64_t m = 0; m < total; m += MOST_ROWS) {
        int rows = total - m < MOST_ROWS ? (int)(total - m) : MOST_ROWS;
        const int64_t *slots = extras ? chosen + unread : 0;
        (md->kv_kind == BF16 ? weigh_bf16 : weigh_f32)(head_values, dim, slots, st->start[row] + unread, keys - unread,
                                                       scores + m * stride + unread, stride, results + m * dim, rows);
    }
    for (int64_t r = 0; r < count; r++)
        for (int64_t g = 0; g < group; g++) {
            float *to = out + (row + r) * md->heads * dim + (head * group + g) * dim;
            float *from = results + (r * group + g) * dim;
            for (int64_t i = 0; i < dim; i += LANES)
                *(f16v *)(to + i) = *(f16v *)(from + i) / splat(sums[r * group + g]);
        }
}

/* ---- the whole step ------------------------------------------------------------------------------------------- */

#define TOGETHER 4 /* rows attended to in one go */

int64_t shared_floats(const model *md, int64_t rows) {
    return rows * (md->hidden + (2 * md->heads + 2 * md->kv_heads) * md->dim + md->inner);
}

int64_t private_floats(const model *md, int64_t rows, int64_t most_keys) {
    int64_t total = TOGETHER * (md->heads / md->kv_heads);
    return rows * md->hidden + total * (2 * md->dim + 1 + most_keys + 2 * PANEL);
}

void forward(const model *md, const step *st, int64_t threads) {
    const int64_t rows = st->rows, hidden = md->hidden, dim = md->dim;
    const int64_t width = (md->heads + 2 * md->kv_heads) * dim;
    float *x = st->shared, *qkv = x + rows * hidden, *mixed = qkv + rows * width;
    float *gated = mixed + rows * md->heads * dim;
    const int64_t own = private_floats(md, rows, st->most_keys);

#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num(), all = omp_get_num_threads();
        float *normed = st->private + me * own, *work = normed + rows * hidden;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < hidden; i++)
                x[r * hidden + i] = md->embed_kind == BF16 ? from_bf16(((const uint16_t *)md->embed)[st->ids[r] * hidden + i])
                                                           : ((const float *)md->embed)[st->ids[r] * hidden + i];
        for (int64_t l = 0; l < md->layers; l++) {
            const layer *ly = md->layer + l;
            /* every thread norms all rows for itself: cheaper than waiting for each other */
            for (int64_t r = 0; r < rows; r++)
                rms_norm(x + r * hidden, ly->attention_norm, hidden, md->eps, normed + r * hidden);
            product(&ly->qkv, normed, rows, qkv, width, STORE, me, all);
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t h = 0; h < md->heads + 2 * md->kv_heads; h++) {
                    float *at = qkv + r * width + h * dim;
                    const float *c = md->cosines + st->positions[r] * dim, *s = md->sines + st->positions[r] * dim;
                    int64_t kv = h - md->heads, bytes = md->slots * dim * element_bytes(md->kv_kind);
                    if (kv < md->kv_heads) { /* a query or a key */
                        const float *norm = kv < 0 ? ly->q_norm : ly->k_norm;
                        if (norm) rms_norm(at, norm, dim, md->eps, at);
                        rotate(at, c, s, dim);
                        if (kv >= 0) write_key((char *)ly->keys + kv * bytes, md->kv_kind, dim, st->slots[r], at);
                    } else {
                        write_value((char *)ly->values + (kv - md->kv_heads) * bytes, md->kv_kind, dim, st->slots[r], at);
                    }
                }
#pragma omp for schedule(dynamic, 1)
            for (int64_t task = 0; task < rows * md->kv_heads; task++) {
                /* rows are taken in runs that start at multiples of TOGETHER within a sequence's run */
                int64_t r = task / md->kv_heads, head = task % md->kv_heads, count = 1, back = 0;
                int plain = st->length[r] == st->plain[r];
                if (plain) {
                    while (back < r && st->start[r - back - 1] == st->start[r] && st->length[r - back - 1] == st->plain[r - back - 1] &&
                           st->length[r - back - 1] == st->length[r - back] - 1)
                        back++;
                    if (back % TOGETHER) continue; /* an earlier task takes this row along */
                    while (count < TOGETHER && r + count < rows && st->start[r + count] == st->start[r] &&
                           st->length[r + count] == st->plain[r + count] && st->length[r + count] == st->length[r] + count)
                        count++;
                }
                attend(md, ly, st, qkv, mixed, head, r, count, work);
            }
            product(&ly->o, mixed, rows, x, hidden, ADD, me, all);
#pragma omp barrier
            for (int64_t r = 0; r < rows; r++)
                rms_norm(x + r * hidden, ly->mlp_norm, hidden, md->eps, normed + r * hidden);
            product(&ly->gate_up, normed, rows, gated, md->inner, SWIGLU, me, all);
#pragma omp barrier
            product(&ly->down, gated, rows, x, hidden, ADD, me, all);
#pragma omp barrier
        }
        for (int64_t w = 0; w < st->wanted; w++)
            rms_norm(x + st->want[w] * hidden, md->norm, hidden, md->eps, normed + w * hidden);
        product(&md->head, normed, st->wanted, st->logits, md->head.n, STORE, me, all);
    }
}

/* ---- the best tokens of a row ---------------------------------------------------------------------------------- */

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

/* best[r][0 .. count): the ids of the largest logits of each row, largest first, the lower id first on ties. */
void top(const float *logits, int64_t rows, int64_t vocab, int64_t stride, int64_t count, int64_t *best,
         int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * stride;
        int64_t *ids = best + r * count, i = 0;
        float values[count];
        for (int64_t j = 0; j < count; j++) values[j] = -INFINITY;
        for (; i + LANES <= vocab; i += LANES)
            if (any_above(x + i, values[count - 1]))
                for (int64_t j = i; j < i + LANES; j++)
                    if (x[j] > values[count - 1]) insert(values, ids, count, x[j], j);
        for (; i < vocab; i++)
            if (x[i] > values[count - 1]) insert(values, ids, count, x[i], i);
    }
}
