/* Vectors of 16 floats, and how numbers of other kinds become them. Knows instructions, not models. */
#ifndef HEADSTART_VECTOR_H
#define HEADSTART_VECTOR_H

#include <math.h>
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

enum kind { F32 = 0, BF16 = 1, I8 = 2, I4 = 3, TILES = 4 /* of bfloat16, see tiles.h */ };

INLINE int64_t element_bytes(int kind) { return kind == F32 ? 4 : kind == BF16 || kind == TILES ? 2 : 1; }

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

/* 32 elements that lie together, as two vectors. In 16 bits element j of 32 lies at 2 * (j % 16) + j / 16, so that one
 * load yields both halves by a shift and a mask. */
INLINE void load32(const char *line, int kind, f16v *low, f16v *high) {
    if (kind == BF16) {
        u16v pair = *(const u16v *)line;
        *low = (f16v)(pair << 16);
        *high = (f16v)(pair & 0xffff0000u);
    } else {
        *low = *(const f16v *)line;
        *high = *(const f16v *)(line + 4 * LANES);
    }
}

INLINE float sum_lanes(f16v v) {
    float s[LANES];
    memcpy(s, &v, sizeof s);
    for (int width = LANES / 2; width; width /= 2)
        for (int i = 0; i < width; i++) s[i] += s[i + width];
    return s[0];
}

INLINE f16v larger(f16v a, f16v b) { /* the second wherever the first is not above it */
    i16v above = a > b;
    return (f16v)(((i16v)a & above) | ((i16v)b & ~above));
}

INLINE float largest_lane(f16v v) { /* any order gives the same */
#if defined(__AVX512F__)
    return _mm512_reduce_max_ps((__m512)v);
#else
    float most = v[0];
    for (int j = 1; j < LANES; j++) most = v[j] > most ? v[j] : most;
    return most;
#endif
}

INLINE int32_t sum_integers(i16v v) { /* any order gives the same */
#if defined(__AVX512F__)
    return _mm512_reduce_add_epi32((__m512i)v);
#else
    int32_t sum = 0;
    for (int j = 0; j < LANES; j++) sum += v[j];
    return sum;
#endif
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

/* What to ask memory for meanwhile: `step` bytes further on with each line. Never read, so it may point anywhere. */
typedef struct {
    const char *at;
    int64_t step;
} ahead;

/* Activations are blocked: [columns / 16][rows][16], so that all rows' next 16 columns lie together. */
INLINE float *block(const float *x, int64_t rows, int64_t row, int64_t column) {
    return (float *)x + column / LANES * rows * LANES + row * LANES;
}

INLINE float *element(const float *x, int64_t rows, int64_t row, int64_t column) {
    return block(x, rows, row, column) + column % LANES;
}

#endif
