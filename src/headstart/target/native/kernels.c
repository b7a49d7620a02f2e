/* The forward pass of a llama-shaped decoder over flat rows, in plain C with vector extensions.
 *
 * Every row is computed by the same sequence of floating-point operations whatever its neighbours: sums run over the
 * inner dimension in one fixed order, work is split between threads by outputs only, and tiles of rows differ in how
 * many rows share a load, never in arithmetic. So rows are bitwise independent by construction.
 *
 * Activations and sums are float32; weights and the KV cache are float32 or bfloat16. With int8 or int4 weights
 * the products' inputs are rounded to 8 bits as well. Activations are blocked (see vector.h).
 *
 * Knows numbers and layouts. Does not know tokenizers, sequences, requests or where weights come from.
 */
#include <omp.h>

#include "attention_tiles.h"
#include "best.h"
#include "products.h"
#include "vector.h"

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
    linear head, exact; /* exact: as head, in floats; without panels there is none */
    const layer *layer;
    float *shares;     /* [layers][kv_heads][slots / 32] or NULL: how much attention the panels of keys got */
    float least_share; /* 0: note the shares; else: read them, and skip panels that got less */
} model;

/* One step. Row r attends to logical keys 0 .. length[r] - 1. The first plain[r] of them lie in consecutive slots from
 * start[r] on; the rest in slots extra[extra_at[r] ..]. start is a multiple of 32 and tells sequences apart. */
typedef struct {
    int64_t rows, wanted, most_keys;
    const int64_t *ids, *positions, *slots, *start, *length, *plain, *extra_at, *extra, *want;
    float *logits;  /* [wanted][head.n] */
    int64_t *best;  /* [wanted][most_best]: the largest of the first `visible` logits, see top */
    int64_t most_best, visible;
    float *shared;  /* see shared_floats */
    float *private; /* threads x private_floats */
} step;

/* ---- norms and rotation, in place or not, of one row ------------------------------------------------------------ */

/* RMSNorm (Zhang & Sennrich 2019) of columns first .. first + n - 1; n is a multiple of 16. */
static void rms_norm(const float *x, int64_t rows, int64_t row, int64_t first, const float *weight, int64_t n, float eps,
                     float *out, int64_t out_rows, int64_t out_row) {
    f16v sum = splat(0.0f);
    for (int64_t i = 0; i < n; i += LANES) {
        f16v v = *(const f16v *)block(x, rows, row, first + i);
        sum = sum + v * v;
    }
    float factor = 1.0f / sqrtf(sum_lanes(sum) / (float)n + eps);
    for (int64_t i = 0; i < n; i += LANES)
        *(f16v *)block(out, out_rows, out_row, first + i) =
            *(const f16v *)block(x, rows, row, first + i) * splat(factor) * *(const f16v *)(weight + i);
}

/* Rotary embedding (Su et al. 2021), halves rotated as transformers does. dim is a multiple of 32. */
static void rotate(float *x, int64_t rows, int64_t row, int64_t first, const float *c, const float *s, int64_t dim) {
    int64_t half = dim / 2;
    for (int64_t i = 0; i < half; i += LANES) {
        f16v *one = (f16v *)block(x, rows, row, first + i), *two = (f16v *)block(x, rows, row, first + half + i);
        f16v a = *one, b = *two;
        *one = a * *(const f16v *)(c + i) - b * *(const f16v *)(s + i);
        *two = b * *(const f16v *)(c + half + i) + a * *(const f16v *)(s + half + i);
    }
}

/* ---- the whole step ------------------------------------------------------------------------------------------- */

/* Rows attended to together: as many as fill a tile with their query heads. */
INLINE int64_t most_together(const model *md) {
    int64_t rows = (md->kv_kind == TILES ? TILE_ROWS : MOST_ROWS) / (md->heads / md->kv_heads);
    return rows > 1 ? rows : 1;
}

/* Keys from which on threads share the heads that are left over when each has taken as many; for fewer it does not pay
 * to wait for each other. */
#define SHARED_KEYS 256

INLINE int64_t most_queries(const model *md) { return most_together(md) * (md->heads / md->kv_heads); }

static int64_t attend_room(const model *md, int64_t most_keys) {
    return room_floats(most_queries(md), md->dim, most_keys);
}

/* For the queries, and then for their weights. */
static int64_t attend_inputs(const model *md, int64_t most_keys) {
    return md->kv_kind == TILES ? tiled_floats(most_queries(md), md->dim + most_keys + 2 * PANEL) : 0;
}

int64_t shared_floats(const model *md, int64_t rows, int64_t most_keys, int64_t threads) {
    return rows * (md->hidden + (2 * md->heads + 2 * md->kv_heads) * md->dim + md->inner) +
           (threads - 1) * attend_room(md, most_keys);
}

int64_t private_floats(const model *md, int64_t rows, int64_t most_keys) {
    int64_t widest = md->heads * md->dim, queries = most_queries(md) * md->dim;
    widest = md->hidden > widest ? md->hidden : widest;
    widest = md->inner > widest ? md->inner : widest;
    int64_t attend = queries + attend_room(md, most_keys) + attend_inputs(md, most_keys), inputs = inputs_floats(rows, widest);
    return rows * md->hidden + (attend > inputs ? attend : inputs);
}

/* Rotate one head's queries or keys of one row, and write keys and values to the cache. */
static void place(const model *md, const layer *ly, const step *st, float *qkv, int64_t row, int64_t head) {
    const int64_t rows = st->rows, dim = md->dim, first = head * dim;
    const int64_t kv = head - md->heads, bytes = md->slots * dim * element_bytes(md->kv_kind);
    const float *values = block(qkv, rows, 0, first);
    if (kv >= md->kv_heads) {
        char *to = (char *)ly->values + (kv - md->kv_heads) * bytes;
        if (md->kv_kind == TILES) write_value_tiles((uint16_t *)to, dim, st->slots[row], values, rows, row);
        else write_value(to, md->kv_kind, dim, st->slots[row], values, rows, row);
        return;
    }
    const float *norm = kv < 0 ? ly->q_norm : ly->k_norm, *c = md->cosines + st->positions[row] * dim;
    if (norm) rms_norm(qkv, rows, row, first, norm, dim, md->eps, qkv, rows, row);
    rotate(qkv, rows, row, first, c, md->sines + st->positions[row] * dim, dim);
    if (kv < 0) return;
    char *to = (char *)ly->keys + kv * bytes;
    if (md->kv_kind == TILES) write_key_tiles((uint16_t *)to, dim, st->slots[row], values, rows, row);
    else write_key(to, md->kv_kind, dim, st->slots[row], values, rows, row);
}

/* Rows that are attended to together: a sequence's rows, most_together at a time. Writes the first row of each lot, and
 * `rows` behind the last; returns how many lots. */
static int64_t lots(const model *md, const step *st, int64_t *first) {
    int64_t count = 0, most = most_together(md);
    for (int64_t r = 0; r < st->rows; r++)
        if (!count || st->start[r] != st->start[r - 1] || r - first[count - 1] == most) first[count++] = r;
    first[count] = st->rows;
    return count;
}

/* One key head for rows first .. first + count - 1. With several `parts`, all threads do it together and each passes
 * the same `memory`; `queries` and what lies behind them, at `own`, is each thread's. */
static void attend(const model *md, int64_t l, const step *st, const float *qkv, float *out, int64_t first, int64_t count,
                   int64_t head, float *queries, float *own, float *memory, int part, int parts) {
    const layer *ly = md->layer + l;
    const int64_t rows = st->rows, group = md->heads / md->kv_heads, dim = md->dim, start = st->start[first];
    const int64_t total = count * group, bytes = element_bytes(md->kv_kind), at = (head * md->slots + start) * dim * bytes;
    const together t = {count, group, start, st->length + first, st->plain + first, st->extra_at + first, st->extra};
    const cache c = {(const char *)ly->keys + at, (const char *)ly->values + at, dim, md->kv_kind};
    const room work = room_in(memory, total, dim);
    float *shares = md->shares && !ly->window ? md->shares + ((l * md->kv_heads + head) * md->slots + start) / PANEL : NULL;
    const int sparse = shares && md->least_share > 0;
    const int last = first + count == rows || st->start[first + count] != start;
    int64_t from[st->most_keys / PANEL + 1], to[st->most_keys / PANEL + 1];
    runs read = {.from = from, .to = to};
    if (sparse) read_some(&t, shares, md->least_share, &read);
    else read_all(&t, ly->window, &read);
    for (int64_t m = 0; m < total; m++)
        for (int64_t i = 0; i < dim; i += LANES)
            *(f16v *)block(queries, total, m, i) =
                *(const f16v *)block(qkv, rows, first + m / group, (head * group + m % group) * dim + i);
    const linear keys = {.panels = c.keys, .n = md->slots - start, .k = dim, .kind = c.kind};
    const inputs in = inputs_for(&keys, queries, total, own);
    score(&keys, &read, &in, &work, part, parts);
    if (parts > 1) {
#pragma omp barrier
    }
    soften_all(&t, md->scale, ly->window, &read, &work, part, parts);
    if (parts > 1) {
#pragma omp barrier
    }
    if (shares && !sparse && last && part == 0) note_shares(&t, &work, shares);
    if (c.kind == TILES) weigh_tiles(&t, &c, &read, &work, own, part, parts);
    else weigh(&t, &c, &read, &work, part, parts);
    for (int64_t column = part * PANEL; column < dim; column += parts * PANEL)
        for (int64_t m = 0; m < total; m++)
            for (int64_t i = column; i < column + PANEL; i += LANES)
                *(f16v *)block(out, rows, first + m / group, (head * group + m % group) * dim + i) =
                    *(const f16v *)block(work.results, total, m, i);
}

INLINE void norm_rows(const float *x, const step *st, const float *weight, const model *md, float *out) {
    for (int64_t r = 0; r < st->rows; r++)
        rms_norm(x, st->rows, r, 0, weight, md->hidden, md->eps, out, st->rows, r);
}

#define NEAR 2048 /* bytes that are read ahead in a panel whose successor is not known */

/* One panel of one row's logits; `x` is made for the head, and tiles are shaped for one row. */
static void exact_panel(const linear *head, const inputs *x, int64_t row, int64_t p, float *logits) {
    float *out = logits + row * head->n + p * PANEL;
    const int64_t bytes = panel_bytes(head);
    panel_product(head, x, p, row, 1, out, LANES, (ahead){(const char *)head->panels + p * bytes + NEAR, bytes / head->k});
}

void forward(const model *md, const step *st, int64_t threads) {
    const int64_t rows = st->rows, hidden = md->hidden, all_heads = md->heads + 2 * md->kv_heads;
    float *x = st->shared, *qkv = x + rows * hidden, *mixed = qkv + rows * all_heads * md->dim;
    float *gated = mixed + rows * md->heads * md->dim, *together = gated + rows * md->inner;
    const int64_t own = private_floats(md, rows, st->most_keys);
    int64_t chosen[md->exact.panels ? st->wanted * EXACT_PANELS : 1];
    const int64_t queries = most_queries(md) * md->dim;
    int64_t first[rows + 1];
    const int64_t count = lots(md, st, first), tasks = count * md->kv_heads;

#pragma omp parallel num_threads(threads)
    {
        const int me = omp_get_thread_num(), all = omp_get_num_threads();
        const int64_t alone = st->most_keys < SHARED_KEYS ? tasks : tasks - tasks % all;
        float *normed = st->private + me * own, *work = normed + rows * hidden;
#pragma omp for schedule(static)
        for (int64_t r = 0; r < rows; r++)
            for (int64_t i = 0; i < hidden; i++)
                *element(x, rows, r, i) = md->embed_kind == BF16
                                              ? from_bf16(((const uint16_t *)md->embed)[st->ids[r] * hidden + i])
                                              : ((const float *)md->embed)[st->ids[r] * hidden + i];
        for (int64_t l = 0; l < md->layers; l++) {
            const layer *ly = md->layer + l;
            /* every thread norms all rows for itself: cheaper than waiting for each other */
            norm_rows(x, st, ly->attention_norm, md, normed);
            product(&ly->qkv, normed, rows, qkv, rows, STORE, &ly->o, work, me, all);
#pragma omp barrier
#pragma omp for schedule(static) collapse(2)
            for (int64_t r = 0; r < rows; r++)
                for (int64_t h = 0; h < all_heads; h++) place(md, ly, st, qkv, r, h);
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t task = 0; task < alone; task++) {
                const int64_t *lot = first + task % count;
                attend(md, l, st, qkv, mixed, lot[0], lot[1] - lot[0], task / count, work, work + queries,
                       work + queries + attend_inputs(md, st->most_keys), 0, 1);
            }
            for (int64_t task = alone; task < tasks; task++) {
                const int64_t *lot = first + task % count;
                attend(md, l, st, qkv, mixed, lot[0], lot[1] - lot[0], task / count, work, work + queries,
                       together + (task - alone) * attend_room(md, st->most_keys), me, all);
            }
#pragma omp barrier
            product(&ly->o, mixed, rows, x, rows, ADD, &ly->gate_up, work, me, all);
#pragma omp barrier
            norm_rows(x, st, ly->mlp_norm, md, normed);
            product(&ly->gate_up, normed, rows, gated, rows, SWIGLU, &ly->down, work, me, all);
#pragma omp barrier
            product(&ly->down, gated, rows, x, rows, ADD, l + 1 < md->layers ? &ly[1].qkv : &md->head, work,
                    me, all);
#pragma omp barrier
        }
        for (int64_t w = 0; w < st->wanted; w++)
            rms_norm(x, rows, st->want[w], 0, md->norm, hidden, md->eps, normed, st->wanted, w);
        product(&md->head, normed, st->wanted, st->logits, md->head.n, LOGITS, &md->layer->qkv, work, me,
                all);
        if (md->exact.panels) {
            const int64_t panels = md->head.n / PANEL, best = panels < EXACT_PANELS ? panels : EXACT_PANELS;
#pragma omp barrier
#pragma omp for schedule(static)
            for (int64_t w = 0; w < st->wanted; w++)
                best_panels(st->logits + w * md->head.n, panels, chosen + w * EXACT_PANELS);
            const inputs in = inputs_for(&md->exact, normed, st->wanted, work);
            if (md->exact.kind == TILES) shape_for(&md->exact, 1, tile_bytes(&md->exact, 1));
#pragma omp for schedule(static) nowait
            for (int64_t i = 0; i < st->wanted * best; i++)
                exact_panel(&md->exact, &in, i / best, chosen[i / best * EXACT_PANELS + i % best], st->logits);
        }
        if (st->most_best) {
#pragma omp barrier
#pragma omp for schedule(dynamic, 1) nowait
            for (int64_t w = 0; w < st->wanted; w++)
                largest_ids(st->logits + w * md->head.n, st->visible, st->most_best, st->best + w * st->most_best);
        }
        if (have_tiles) release_tiles();
    }
}

/* ---- rows that stay -------------------------------------------------------------------------------------------- */

/* Where an element of a slot lies in keys or values of one head. */
INLINE int64_t place_of(int64_t kind, int is_value, int64_t dim, int64_t slot, int64_t column) {
    if (kind == TILES) return is_value ? value_at(dim, slot, column) : key_at(dim, slot, column);
    if (is_value) return slot * dim + column;
    const int64_t j = slot % PANEL;
    return slot / PANEL * PANEL * dim + column * PANEL + (kind == BF16 ? 2 * (j % LANES) + j / LANES : j);
}

/* Copy what the slots source[0] < source[1] < ... hold to the slots from destination <= source[0] on, in all layers. */
void move_rows(const model *md, const int64_t *source, int64_t count, int64_t destination) {
    const int64_t dim = md->dim, bytes = element_bytes(md->kv_kind);
    for (int64_t l = 0; l < md->layers; l++)
        for (int64_t h = 0; h < md->kv_heads; h++)
            for (int is_value = 0; is_value < 2; is_value++) {
                char *rows = (char *)(is_value ? md->layer[l].values : md->layer[l].keys) + h * md->slots * dim * bytes;
                for (int64_t i = 0; i < count; i++)
                    for (int64_t column = 0; source[i] != destination + i && column < dim; column++) {
                        const int64_t to = place_of(md->kv_kind, is_value, dim, destination + i, column);
                        const int64_t from = place_of(md->kv_kind, is_value, dim, source[i], column);
                        if (bytes == 2) ((uint16_t *)rows)[to] = ((const uint16_t *)rows)[from];
                        else ((float *)rows)[to] = ((const float *)rows)[from];
                    }
            }
}

/* ---- the best tokens of a row ---------------------------------------------------------------------------------- */

/* best[r][0 .. count): the ids of the largest logits of each row, largest first, the lower id first on ties. */
void top(const float *logits, int64_t rows, int64_t vocab, int64_t stride, int64_t count, int64_t *best,
         int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) largest_ids(logits + r * stride, vocab, count, best + r * count);
}

/* The ids of each row's two largest logits, the lower id on ties, and their probabilities: [rows][2]. */
void likeliest(const float *logits, int64_t rows, int64_t vocab, int64_t stride, int64_t *ids, float *probabilities,
               int64_t threads) {
#pragma omp parallel for schedule(dynamic, 1) num_threads(threads) if (rows > 1)
    for (int64_t r = 0; r < rows; r++) {
        const float *x = logits + r * stride;
        float most[2], sum = 0.0f;
        int64_t i = 0;
        largest(x, vocab, 2, most, ids + 2 * r);
        f16v sums = splat(0.0f);
        for (; i + LANES <= vocab; i += LANES) sums += exp16(*(const f16v *)(x + i) - splat(most[0]));
        for (; i < vocab; i++) sum += expf(x[i] - most[0]);
        probabilities[2 * r] = 1.0f / (sum + sum_lanes(sums));
        probabilities[2 * r + 1] = expf(most[1] - most[0]) * probabilities[2 * r];
    }
}
