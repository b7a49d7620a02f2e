/* Products of bfloat16 weights on the processor's matrix unit (Intel AMX), where it has one.
 *
 * A weight is an exact bfloat16. An activation becomes the sum of two: what bfloat16 holds of it, and what it holds of the
 * rest, 16 bits of mantissa together. The unit keeps a sum for every row and output, and adds to it the products of 32
 * columns at a time, first with the one part of the activations and then with the other, in columns' order: rows that
 * share a tile share nothing but the reading of the weights. Panels of 32 outputs: [n / 32][k / 32][2][16][16][2],
 * halves of 16 outputs, pairs of columns, outputs, the two columns; k is filled up with zeros. */
#ifndef HEADSTART_TILES_H
#define HEADSTART_TILES_H

#include "vector.h"

#if defined(__linux__) && defined(__x86_64__) && defined(__AMX_BF16__) && defined(__AMX_INT8__) && defined(__AVX512BF16__)
#define HAS_TILES 1
#include <sys/syscall.h>
#include <unistd.h>
#else
#define HAS_TILES 0
#endif

#define TILE_ROWS 16
#define MOST_ROWS_TILES (2 * TILE_ROWS) /* that share the loading of weights */
#define TILE_COLUMNS 32
#define TILE_BYTES 1024

static int have_tiles = 0;

/* Whether the matrix unit can be used: it was there when this was compiled, and the system lets this process have it. Asks
 * the system for it, so it comes before everything else. */
int64_t matrix_unit(void) {
#if HAS_TILES
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XTILEDATA = 18 };
    have_tiles = syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XTILEDATA) == 0;
#endif
    return have_tiles;
}

INLINE int64_t tiles_of(int64_t columns) { return (columns + TILE_COLUMNS - 1) / TILE_COLUMNS; }

/* Activations in two parts, [columns / 32][rows][32] each. */
typedef struct {
    uint16_t *upper, *lower;
    int64_t rows;
} halved;

INLINE int64_t halved_floats(int64_t rows, int64_t columns) { return (rows * tiles_of(columns) + TILE_ROWS) * TILE_COLUMNS; }

/* Rows of `rows` in the first of their two tiles; the second has as many or one less, or none where one is enough. */
INLINE int64_t first_tile(int64_t rows) { return rows > TILE_ROWS ? (rows + 1) / 2 : rows; }

#if HAS_TILES
/* x [columns] blocked over rows, in two parts that lie in `memory`. */
static halved halve(const float *x, int64_t rows, int64_t columns, float *memory) {
    const int64_t tiles = tiles_of(columns);
    const halved out = {(uint16_t *)memory, (uint16_t *)memory + rows * tiles * TILE_COLUMNS, rows};
    for (int64_t t = 0; t < tiles; t++)
        for (int64_t m = 0; m < rows; m++) {
            const int64_t at = (t * rows + m) * TILE_COLUMNS, i = t * TILE_COLUMNS;
            const __m512 one = (__m512)*(const f16v *)block(x, rows, m, i);
            const __m512 two = i + LANES < columns ? (__m512)*(const f16v *)block(x, rows, m, i + LANES) : _mm512_setzero_ps();
            const __m512i upper = (__m512i)_mm512_cvtne2ps_pbh(two, one);
            const __m512 first = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_castsi512_si256(upper)), 16);
            const __m512 second = (__m512)_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm512_extracti64x4_epi64(upper, 1)), 16);
            _mm512_storeu_si512(out.upper + at, upper);
            _mm512_storeu_si512(out.lower + at, (__m512i)_mm512_cvtne2ps_pbh(two - second, one - first));
        }
    __asm__ volatile("" ::: "memory"); /* compilers are not told that loading a tile reads memory */
    return out;
}

/* In this thread: 0 and 1 hold sums of `first` rows and 16 outputs, 2 and 3 of `second`; 4 and 5 `bytes` of those rows'
 * activations; 6 and 7 the weights they meet. */
static void shape_tiles(int64_t first, int64_t second, int64_t bytes) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = i == 4 || i == 5 ? bytes : 4 * LANES;
        shape.rows[i] = i >= 6 ? bytes / 4 : i < 2 || i == 4 ? first : second;
    }
    _tile_loadconfig(&shape);
}

/* sums[m][0..31] = x[m] . w.T for one panel and rows from .. from + rows - 1, for which tiles are shaped; laid out as in
 * add_lines. */
static void panel_tiles(const char *panel, const halved *x, int64_t from, int64_t columns, float *sums, int64_t half,
                        ahead next, int rows) {
    const int64_t tiles = tiles_of(columns), step = x->rows * TILE_COLUMNS, first = first_tile(rows);
    const uint16_t *upper = x->upper + from * TILE_COLUMNS, *lower = x->lower + from * TILE_COLUMNS;
    const int64_t second = first < rows ? first * TILE_COLUMNS : 0;
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
    for (int64_t t = 0; t < tiles; t++, upper += step, lower += step, panel += 2 * TILE_BYTES) {
        for (int l = 0; l < TILE_COLUMNS; l++, next.at += next.step) __builtin_prefetch(next.at, 0, 2);
        _tile_loadd(6, panel, 2 * TILE_COLUMNS);
        _tile_loadd(7, panel + TILE_BYTES, 2 * TILE_COLUMNS);
        for (int part = 0; part < 2; part++) {
            const uint16_t *rows_of = part ? lower : upper;
            _tile_loadd(4, rows_of, 2 * TILE_COLUMNS);
            _tile_dpbf16ps(0, 4, 6);
            _tile_dpbf16ps(1, 4, 7);
            if (!second) continue;
            _tile_loadd(5, rows_of + second, 2 * TILE_COLUMNS);
            _tile_dpbf16ps(2, 5, 6);
            _tile_dpbf16ps(3, 5, 7);
        }
    }
    _tile_stored(0, sums, 4 * LANES);
    _tile_stored(1, sums + half, 4 * LANES);
    if (second) {
        _tile_stored(2, sums + first * LANES, 4 * LANES);
        _tile_stored(3, sums + half + first * LANES, 4 * LANES);
    }
}
INLINE void release_tiles(void) { _tile_release(); }
#else
INLINE halved halve(const float *x, int64_t rows, int64_t columns, float *memory) { return (halved){}; }
INLINE void shape_tiles(int64_t first, int64_t second, int64_t bytes) {}
INLINE void release_tiles(void) {}
INLINE void panel_tiles(const char *panel, const halved *x, int64_t from, int64_t columns, float *sums, int64_t half,
                        ahead next, int rows) {}
#endif

#endif
