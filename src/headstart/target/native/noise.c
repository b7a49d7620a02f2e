/* One token of softmax(scores) by Gumbel noise, to the bit what headstart.decode.noise defines, and the next best.
 *
 * Compiled without contraction: each operation on doubles is rounded by itself, as numpy does it. */
#include "vector.h"

typedef uint64_t q8v __attribute__((vector_size(64)));
typedef double d8v __attribute__((vector_size(64)));
typedef float f8v __attribute__((vector_size(32), aligned(4), may_alias));
typedef int32_t i8v __attribute__((vector_size(32)));

#define GAMMA 0x9E3779B97F4A7C15ull
#define AT_ONCE 8

/* The splitmix64 finaliser, of a number or a vector. */
#define MIX(z)                                                                                                       \
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;                                                                     \
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;                                                                     \
    z = z ^ (z >> 31);

/* 2 atanh((m - 1) / (m + 1)) by its series, as noise._log_at takes it. */
static double logarithm(double x) {
    int e;
    double m = frexp(x, &e);
    if (m < 0.7071067811865476) m *= 2.0, e--;
    const double s = (m - 1.0) / (m + 1.0), z = s * s;
    double total = 1.0 / 23.0;
    for (int odd = 21; odd > 0; odd -= 2) total = total * z + 1.0 / odd;
    return e * 0.6931471805599453 + 2.0 * (total * s);
}

/* The noise of token i. */
static double gumbel(uint64_t key, int64_t i) {
    uint64_t z = key + (uint64_t)(i + 1) * GAMMA;
    MIX(z)
    const double u = (double)(2 * (z >> 12) + 1) * 0x1p-53;
    return -logarithm(-logarithm(u));
}

/* Bounds of eight scores with their noise, from above. With u the uniform behind it the noise is at most -log(1 - u),
 * and the logarithm of a float is at least log 2 times its bits read as a number: the chord lies below the curve. */
INLINE f8v bounds(const float *scores, q8v z) {
    MIX(z)
    const d8v one_to_two = (d8v)(z >> 12 | 0x3FF0000000000000ull);
    const f8v rest = __builtin_convertvector(2.0 - one_to_two, f8v); /* 1 - u + 2**-53 */
    const i8v bits = (i8v)rest - 0x3f800000;
    return *(const f8v *)scores - __builtin_convertvector(bits, f8v) * (0.69314718f / 8388608.0f);
}

/* The first index of the largest of n numbers, or of one that is none. */
static int64_t first_largest(const float *x, int64_t n) {
    f16v most = splat(-INFINITY);
    i16v odd = {0};
    int64_t i = 0;
    for (; i + LANES <= n; i += LANES) {
        const f16v v = *(const f16v *)(x + i);
        most = larger(v, most);
        odd |= v != v;
    }
    float best = largest_lane(most);
    int none = sum_integers(odd) != 0;
    for (; i < n; i++) {
        best = x[i] > best ? x[i] : best;
        none |= x[i] != x[i];
    }
    for (i = 0; i < n; i++)
        if (none ? x[i] != x[i] : x[i] == best) return i;
    return 0;
}

/* The first index of the largest score with its noise; where the largest score is not finite, its first index. With
 * `second`, also the index of the next largest, and by how much it lags; itself and infinity where there is none. */
INLINE int64_t draw(const float *scores, int64_t n, uint64_t key, int64_t *second, double *lag) {
    int64_t best = first_largest(scores, n), i = 0, next = best == 0;
    if (second) *second = best, *lag = INFINITY;
    if (!isfinite(scores[best]) || n == 1) return best;
    double most = (double)scores[best] + gumbel(key, best), behind = (double)scores[next] + gumbel(key, next);
    if (behind > most || (behind == most && next < best)) {
        const double larger_one = behind;
        const int64_t first = next;
        behind = most, next = best;
        most = larger_one, best = first;
    }
    float least = 0.0f;
    q8v z;
    for (int j = 0; j < AT_ONCE; j++) z[j] = key + (uint64_t)(j + 1) * GAMMA;
    for (int changed = 1; i < n; z += AT_ONCE * GAMMA) {
        const int64_t end = i + AT_ONCE < n ? i + AT_ONCE : n;
        if (changed) { /* single precision loses far less than this */
            const double bar = second ? behind : most;
            least = (float)(bar - 1e-5 * (fabs(bar) + 80.0));
        }
        changed = 0;
        if (end - i == AT_ONCE) {
            const i8v near = bounds(scores + i, z) >= least;
            uint64_t any[4];
            memcpy(any, &near, sizeof any);
            if (!(any[0] | any[1] | any[2] | any[3])) {
                i = end;
                continue;
            }
        }
        for (; i < end; i++) {
            if (i == best || i == next) continue;
            const double rival = (double)scores[i] + gumbel(key, i);
            if (rival > most || (rival == most && i < best)) {
                behind = most, next = best;
                most = rival, best = i;
                changed = 1;
            } else if (rival > behind) {
                behind = rival, next = i;
                changed = 1;
            }
        }
    }
    if (second && isfinite(behind)) *second = next, *lag = most - behind;
    return best;
}

int64_t gumbel_argmax(const float *scores, int64_t n, uint64_t key) { return draw(scores, n, key, NULL, NULL); }

int64_t gumbel_two(const float *scores, int64_t n, uint64_t key, int64_t *second, double *lag) {
    return draw(scores, n, key, second, lag);
}
