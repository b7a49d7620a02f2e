/* The parts of the n-gram drafter: automaton.py, blend.py, recycle.py and grow.py over again, decision by decision and
 * rounding by rounding, for rounds that are short enough to notice.
 *
 * Compiled without contraction, so that each operation on doubles is rounded by itself as Python does it. Called with
 * Python's lock held: nothing here guards itself. */
#include <math.h>

#include "opinions.h"

automaton *index_new(int64_t refresh_limit) {
    automaton *a = calloc(1, sizeof *a);
    if (!a) return NULL;
    a->refresh_limit = (int32_t)refresh_limit;
    if (!slots_grown(a)) a->broken = 1;
    add_state(a, (state){.link = NONE, .recent = NONE});
    return a;
}

void index_free(automaton *a) {
    if (!a) return;
    free(a->states);
    free(a->edges);
    free(a->slots);
    free(a->rankings);
    free(a);
}

/* Returns 0 where memory ran out; the index is of no use then. */
int64_t index_extend(automaton *a, const int32_t *tokens, int64_t count) {
    for (int64_t i = 0; i < count && !a->broken; i++) append(a, tokens[i]);
    return !a->broken;
}

void index_separate(automaton *a) { a->last = ROOT; }

table *table_new(void) {
    table *t = calloc(1, sizeof *t);
    if (t) t->oldest = t->newest = t->free = NONE;
    return t;
}

void table_free(table *t) {
    if (!t) return;
    free(t->all);
    free(t->heads);
    free(t);
}

int64_t table_size(const table *t) { return t->size; }

void table_drop(table *t) { drop_oldest(t); }

/* Takes in `size` best tokens after one or two tokens, for both contexts; `before` is NOBODY for one. Returns 0 where
 * memory ran out: what was heard before is still known. */
int64_t table_hear(table *t, int64_t before, int64_t last, const int32_t *ranked, int64_t size) {
    for (int32_t length = 1; length <= (before == NOBODY ? 1 : LONGEST); length++) {
        opinions *of = opinions_of(t, length == 1 ? NOBODY : (int32_t)before, (int32_t)last);
        if (!of) return 0;
        hear(of, ranked, (int32_t)size);
    }
    return 1;
}

#define MOST_SOURCES 3 /* the history and two generations of a store */
#define STORE_CONTEXT 16
#define LENGTH_BUCKETS 8
#define PROBABILITY_BUCKETS 20
static const double STORE_MASS[] = {0.15, 0.3, 0.5, 0.7, 1.0};
static const int32_t BY_LENGTH[] = {0, 1, 2, 3, 4, 5, 5, 5};

/* Where a draft has got to. */
typedef struct {
    match matches[MOST_SOURCES];
    int32_t before, last; /* its last tokens, NOBODY where there are none */
} place;

/* What a draft is grown from, and the draft. */
typedef struct {
    /* in */
    automaton *sources[MOST_SOURCES];
    table *recycled;
    const double *hits, *trials; /* of the calibration's cells */
    double prior;
    int64_t sources_size;
    int64_t depth, nodes, width; /* nodes 0: a chain */
    double min_path, least, match_cap;
    /* out, room for `nodes` or `depth` + 1 */
    int64_t size, shown;
    int32_t *tokens, *parents, *cells;
    double *confidence;
} growth;

static int32_t cell_of(int32_t length, double probability) {
    int32_t column;
    if (probability >= 0.125) {
        column = 4 + (int32_t)(probability * 16);
        if (column > PROBABILITY_BUCKETS - 1) column = PROBABILITY_BUCKETS - 1;
    } else {
        column = 6 + (int32_t)(log2(probability + 1e-9) + 2.0);
        if (column < 0) column = 0;
    }
    const int32_t row = length < 8 ? BY_LENGTH[length] : length < 16 ? 6 : LENGTH_BUCKETS - 1;
    return row * PROBABILITY_BUCKETS + column;
}

static double confidence_of(const growth *g, int32_t cell, double estimate) {
    return (g->hits[cell] + g->prior * estimate) / (g->trials[cell] + g->prior);
}

static void add_node(growth *g, int32_t token, int32_t parent, int32_t cell, double confidence) {
    g->tokens[g->size] = token;
    g->parents[g->size] = parent;
    g->cells[g->size] = cell;
    g->confidence[g->size++] = confidence < 1.0 ? confidence : 1.0;
}

static place start_of(const growth *g, const int32_t *tail, int64_t size) {
    place at = {.before = size > 1 ? tail[size - 2] : NOBODY, .last = size ? tail[size - 1] : NOBODY};
    at.matches[0] = longest_suffix(g->sources[0]);
    for (int64_t s = 1; s < g->sources_size; s++)
        for (int64_t i = 0; i < size; i++) at.matches[s] = step(g->sources[s], at.matches[s], tail[i]);
    return at;
}

static place place_after(const growth *g, const place *from, int32_t token) {
    place at = {.before = from->last, .last = token};
    for (int64_t s = 0; s < g->sources_size; s++) at.matches[s] = step(g->sources[s], from->matches[s], token);
    return at;
}

/* The blended law at a place, and the length of the longest match there. */
static void law_at(const growth *g, const place *at, law *to) {
    trail trails[MOST_SOURCES] = {{g->sources[0], at->matches[0], 1.0}};
    int32_t size = 1;
    clear_law(to);
    to->longest = at->matches[0].length;
    for (int64_t s = 1; s < g->sources_size; s++) {
        const match found = at->matches[s];
        if (!found.length) continue;
        const int32_t longer = found.length - at->matches[0].length + 1;
        trails[size++] = (trail){g->sources[s], found, STORE_MASS[longer < 0 ? 0 : longer > 4 ? 4 : longer]};
        if (found.length > to->longest) to->longest = found.length;
    }
    const int32_t most = at->before != NOBODY ? 2 : at->last != NOBODY ? 1 : 0;
    for (int32_t length = g->recycled ? most : 0; length > 0; length--) {
        double mass = 0.0;
        for (int32_t i = 0; i < size; i++) {
            add_levels(trails + i, to, length);
            mass += trails[i].mass;
        }
        const double escape = add_opinions(g->recycled, at->before, at->last, length, to, mass);
        for (int32_t i = 0; escape < 1.0 && i < size; i++) trails[i].mass *= escape;
    }
    for (int32_t i = 0; i < size; i++) {
        add_levels(trails + i, to, 1);
        if (i == 0) add_empty_context(trails, to);
    }
    if (size > 1) {
        double total = 0.0;
        for (int32_t i = 0; i < to->size; i++) total += to->shares[i];
        for (int32_t i = 0; i < to->size; i++) to->shares[i] /= total;
    }
}

static void grow_chain(growth *g, place at, law *scratch) {
    double path = 1.0;
    for (int64_t level = 0; level < g->depth; level++) {
        law_at(g, &at, scratch);
        if (!scratch->size) return;
        int32_t best = 0;
        for (int32_t i = 1; i < scratch->size; i++)
            if (scratch->shares[i] > scratch->shares[best]) best = i;
        const int32_t token = scratch->tokens[best], cell = cell_of(scratch->longest, scratch->shares[best]);
        const double confidence = confidence_of(g, cell, scratch->shares[best]);
        path *= confidence;
        add_node(g, token, (int32_t)g->size - 1, cell, confidence);
        if (path < g->min_path) return;
        g->shown++;
        at = place_after(g, &at, token);
    }
}

/* A token that could be the next node; `minus` is its path's probability, negative. */
typedef struct {
    double minus, estimate;
    int32_t token, parent, level, length;
    int32_t from; /* the place it follows */
} candidate;

#define MOST_NODES 64
#define MOST_WIDTH 64

typedef struct {
    law of;
    place places[MOST_NODES + 1];
    candidate waiting[MOST_NODES * (MOST_WIDTH + 1)]; /* in the order in which they came */
} bench;

static void grow_tree(growth *g, place start, bench *on) {
    double best[MOST_NODES]; /* of all candidates so far, negative, ascending: what is worse than `nodes` others is out */
    int32_t best_size = 0, waiting = 0, places = 0;
    double path = 1.0, min_path = g->min_path;
    int32_t node = NONE, level = 0;
    on->places[places++] = start;
    for (;;) {
        if (level < g->depth) {
            law *of = &on->of;
            law_at(g, on->places + places - 1, of);
            const double floor = best_size == g->nodes ? -best[best_size - 1] / path : 0.0;
            int32_t order[MOST_WIDTH], children = 0; /* the likeliest, those that came first before their equals */
            for (int32_t i = 0; i < of->size; i++) {
                if (!(of->shares[i] > floor)) continue;
                int32_t at = children;
                while (at > 0 && of->shares[order[at - 1]] < of->shares[i]) at--;
                if (at == g->width) continue;
                if (children < g->width) children++;
                for (int32_t j = children - 1; j > at; j--) order[j] = order[j - 1];
                order[at] = i;
            }
            for (int32_t c = 0; c < children; c++) {
                const double estimate = of->shares[order[c]], minus = -path * estimate;
                if (best_size == g->nodes) {
                    if (minus >= best[best_size - 1]) break;
                    best_size--;
                }
                int32_t at = best_size++;
                for (; at > 0 && best[at - 1] > minus; at--) best[at] = best[at - 1];
                best[at] = minus;
                on->waiting[waiting++] =
                    (candidate){minus, estimate, of->tokens[order[c]], node, level + 1, of->longest, places - 1};
            }
        }
        int32_t next = 0;
        for (int32_t i = 1; i < waiting; i++)
            if (on->waiting[i].minus < on->waiting[next].minus) next = i;
        if (!waiting || -on->waiting[next].minus < min_path) return;
        const candidate chosen = on->waiting[next];
        memmove(on->waiting + next, on->waiting + next + 1, (--waiting - next) * sizeof *on->waiting);
        node = (int32_t)g->size;
        path = -chosen.minus;
        level = chosen.level;
        const int32_t cell = cell_of(chosen.length, chosen.estimate);
        add_node(g, chosen.token, chosen.parent, cell, confidence_of(g, cell, chosen.estimate));
        g->shown++;
        if (g->size == g->nodes) return;
        if (g->least > min_path) min_path = g->least;
        if (level < g->depth) {
            on->places[places] = place_after(g, on->places + chosen.from, chosen.token);
            places++;
        }
    }
}

/* Grows one draft after a history that ends in `tail`, its last STORE_CONTEXT tokens. */
void grow(growth *g, const int32_t *tail, int64_t size) {
    static bench on;
    const place start = start_of(g, tail, size);
    int32_t longest = 0;
    for (int64_t s = 0; s < g->sources_size; s++)
        if (start.matches[s].length > longest) longest = start.matches[s].length;
    if (g->match_cap >= 0.0 && g->depth > 1 + (int64_t)(g->match_cap * longest)) g->depth = 1 + (int64_t)(g->match_cap * longest);
    g->size = g->shown = 0;
    if (g->nodes)
        grow_tree(g, start, &on);
    else
        grow_chain(g, start, &on.of);
}
