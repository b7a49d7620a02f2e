/* The next-token law of a match, as in blend.py: contexts of every length, longest first. */
#ifndef HEADSTART_BLEND_H
#define HEADSTART_BLEND_H

#include "automaton.h"

#define RECENCY 100.0
#define STALE 1.125
#define FLOOR 1e-3
static const double ESCAPE_BY_LENGTH[] = {1.0, 1.3, 1.0, 0.85, 0.7, 0.5, 0.5, 0.5, 0.3};

/* A law in the making: tokens in the order in which they first came, with their probabilities.
 *
 * A context spreads over FAN_OUT tokens at most, and contexts of 8 tokens and more leave at most 0.15 to the next, so that
 * no more than 12 of an index are looked at before FLOOR; three indexes and the opinions stay below a thousand tokens. */
#define MOST_TOKENS 1024
#define LAW_SLOTS 4096
typedef struct {
    int32_t size, longest;
    int32_t tokens[MOST_TOKENS];
    double shares[MOST_TOKENS];
    uint16_t slots[LAW_SLOTS]; /* 1 + place, 0 where free */
} law;

static uint32_t law_slot(int32_t token) { return ((uint32_t)token * 0x9E3779B1u) >> 20; }

static void clear_law(law *of) {
    for (int32_t i = 0; i < of->size; i++) { /* whichever slot it took, it lies in the run behind its own */
        for (uint32_t at = law_slot(of->tokens[i]); of->slots[at]; at = (at + 1) % LAW_SLOTS) of->slots[at] = 0;
    }
    of->size = of->longest = 0;
}

static void add_share(law *to, int32_t token, double share) {
    uint32_t at = law_slot(token);
    for (; to->slots[at]; at = (at + 1) % LAW_SLOTS) {
        const int32_t place = to->slots[at] - 1;
        if (to->tokens[place] == token) {
            to->shares[place] += share;
            return;
        }
    }
    if (to->size == MOST_TOKENS) return;
    to->tokens[to->size] = token;
    to->shares[to->size++] = share;
    to->slots[at] = (uint16_t)to->size;
}

/* The FAN_OUT most frequent continuations of a state, the newer first among equals; up to date within STALE. NULL where
 * there is no memory. */
static const ranking *top(automaton *a, int32_t of) {
    state *at = a->states + of;
    if (at->ranked == NONE) {
        if (!grown((void **)&a->rankings, a->rankings_size, &a->rankings_room, sizeof *a->rankings)) return NULL;
        at->ranked = (int32_t)a->rankings_size++;
        a->rankings[at->ranked].until = -1.0;
    }
    ranking *kept = a->rankings + at->ranked;
    if (at->count <= kept->until) return kept;
    kept->size = 0;
    for (int32_t e = at->first; e != NONE; e = a->edges[e].next) {
        const state *after = a->states + a->edges[e].to;
        int32_t place = kept->size;
        for (; place > 0; place--) {
            const state *before = a->states + kept->states[place - 1];
            if (before->count > after->count || (before->count == after->count && before->recent >= after->recent)) break;
        }
        if (place == FAN_OUT) continue;
        if (kept->size < FAN_OUT) kept->size++;
        for (int32_t i = kept->size - 1; i > place; i--) {
            kept->tokens[i] = kept->tokens[i - 1];
            kept->states[i] = kept->states[i - 1];
        }
        kept->tokens[place] = a->edges[e].token;
        kept->states[place] = a->edges[e].to;
    }
    kept->until = at->fan > FAN_OUT ? at->count * STALE : at->count;
    return kept;
}

/* Where a law has got to in one index, and the mass that is left for shorter contexts. */
typedef struct {
    automaton *of;
    match at;
    double mass;
} trail;

/* Adds the contexts of at least `shortest` tokens. */
static void add_levels(trail *on, law *to, int32_t shortest) {
    automaton *a = on->of;
    const double now = a->size + RECENCY;
    while (on->at.length >= shortest && on->at.at > ROOT && on->mass > FLOOR) {
        const state *at = a->states + on->at.at;
        if (at->fan) {
            const double scale = ESCAPE_BY_LENGTH[on->at.length < 8 ? on->at.length : 8];
            double escape;
            if (at->fan == 1) {
                const edge *only = a->edges + at->first;
                escape = scale / (a->states[only->to].count + 1);
                add_share(to, only->token, on->mass * (1.0 - escape));
            } else {
                int32_t tokens[FAN_OUT], size = 0, seen = 0;
                double weights[FAN_OUT], total = 0.0;
                const ranking *best = at->fan > FAN_OUT ? top(a, on->at.at) : NULL;
                int32_t e = at->first;
                for (; best ? size < best->size : e != NONE && size < FAN_OUT; size++) {
                    const state *after = a->states + (best ? best->states[size] : a->edges[e].to);
                    tokens[size] = best ? best->tokens[size] : a->edges[e].token;
                    weights[size] = after->count / (now - after->recent);
                    total += weights[size];
                    seen += after->count;
                    if (!best) e = a->edges[e].next;
                }
                if (at->fan > FAN_OUT) seen = at->count;
                escape = scale * at->fan / (seen + at->fan);
                if (escape > 0.95) escape = 0.95;
                const double share = on->mass * (1.0 - escape) / total;
                for (int32_t i = 0; i < size; i++) add_share(to, tokens[i], share * weights[i]);
            }
            on->mass *= escape;
        }
        on->at.at = at->link;
        on->at.length = a->states[on->at.at].length;
    }
}

/* Adds the law without context. */
static void add_empty_context(trail *on, law *to) {
    automaton *a = on->of;
    const ranking *best = a->size ? top(a, ROOT) : NULL;
    for (int32_t i = 0; best && i < best->size; i++)
        add_share(to, best->tokens[i], on->mass * (a->states[best->states[i]].count / (double)a->size));
}
#endif
