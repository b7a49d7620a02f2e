/* The match index of automaton.py: a suffix automaton with counts and recency, state by state and edge by edge the same.
 *
 * Drafting comes right after a forward call has emptied the caches, so what is looked at together lies together. Edges are
 * found by hashing (state, token), and listed in the order in which they came, as a dict would list them. */
#ifndef HEADSTART_AUTOMATON_H
#define HEADSTART_AUTOMATON_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define ROOT 0
#define NONE (-1)
#define FAN_OUT 24 /* as in blend.py */

typedef struct {
    int32_t link, length, count, recent;
    int32_t first, last, fan; /* edges */
    int32_t ranked;           /* its ranking, see blend.h */
} state;

typedef struct {
    int32_t from, token, to, next;
} edge;

typedef struct {
    double until; /* the count up to which it serves */
    int32_t size, tokens[FAN_OUT], states[FAN_OUT];
} ranking;

typedef struct {
    state *states;
    edge *edges;
    int32_t *slots; /* edges by hash, NONE where free */
    ranking *rankings;
    int64_t states_size, states_room, edges_size, edges_room, slots_room, rankings_size, rankings_room;
    int32_t last, size, refresh_limit;
    int32_t broken; /* memory ran out: what is indexed is no longer what was said */
} automaton;

/* Makes room for one more element; returns 0, with the array as it was, where there is no memory. */
static int grown(void **array, int64_t size, int64_t *room, int64_t bytes) {
    if (size < *room) return 1;
    const int64_t more = *room ? 2 * *room : 64;
    void *moved = realloc(*array, more * bytes);
    if (!moved) return 0;
    *array = moved;
    *room = more;
    return 1;
}

/* Where a hash table of `room` places, a power of two, begins to look for a pair. */
static int64_t hash(int32_t one, int32_t two, int64_t room) {
    const uint64_t key = (uint64_t)(uint32_t)one << 32 | (uint32_t)two;
    return (int64_t)((key * 0x9E3779B97F4A7C15ull) >> 24) & (room - 1);
}

/* Replaces a hash table by an empty one of twice the room; returns 0, with the table as it was, where there is no memory. */
static int emptied(int32_t **places, int64_t *room, int64_t least) {
    const int64_t more = *room ? 2 * *room : least;
    int32_t *fresh = malloc(more * sizeof *fresh);
    if (!fresh) return 0;
    memset(fresh, 0xff, more * sizeof *fresh); /* NONE */
    free(*places);
    *places = fresh;
    *room = more;
    return 1;
}

/* The edge from a state by a token, or NONE. */
static int32_t edge_of(const automaton *a, int32_t from, int32_t token) {
    int64_t at = hash(from, token, a->slots_room);
    for (;; at = (at + 1) & (a->slots_room - 1)) {
        const int32_t found = a->slots[at];
        if (found == NONE || (a->edges[found].from == from && a->edges[found].token == token)) return found;
    }
}

static void put_slot(automaton *a, int32_t number) {
    int64_t at = hash(a->edges[number].from, a->edges[number].token, a->slots_room);
    while (a->slots[at] != NONE) at = (at + 1) & (a->slots_room - 1);
    a->slots[at] = number;
}

/* At most half of the slots are taken. */
static int slots_grown(automaton *a) {
    if (2 * (a->edges_size + 1) <= a->slots_room) return 1;
    if (!emptied(&a->slots, &a->slots_room, 128)) return 0;
    for (int64_t i = 0; i < a->edges_size; i++) put_slot(a, (int32_t)i);
    return 1;
}

static void add_edge(automaton *a, int32_t from, int32_t token, int32_t to) {
    if (!slots_grown(a) || !grown((void **)&a->edges, a->edges_size, &a->edges_room, sizeof *a->edges)) {
        a->broken = 1;
        return;
    }
    const int32_t number = (int32_t)a->edges_size++;
    state *at = a->states + from;
    a->edges[number] = (edge){from, token, to, NONE};
    if (at->fan++)
        a->edges[at->last].next = number;
    else
        at->first = number;
    at->last = number;
    put_slot(a, number);
}

/* A new state; the root where there is no memory for one. */
static int32_t add_state(automaton *a, state fresh) {
    if (!grown((void **)&a->states, a->states_size, &a->states_room, sizeof *a->states)) {
        a->broken = 1;
        return ROOT;
    }
    fresh.first = fresh.last = fresh.ranked = NONE;
    fresh.fan = 0;
    a->states[a->states_size] = fresh;
    return (int32_t)a->states_size++;
}

/* Splits the shorter contexts off `original`, which follows `walk` by `token`; returns the new state. */
static int32_t split(automaton *a, int32_t walk, int32_t token, int32_t original) {
    state shorter = a->states[original];
    shorter.length = a->states[walk].length + 1;
    const int32_t fresh = add_state(a, shorter);
    for (int32_t e = a->states[original].first; e != NONE && !a->broken; e = a->edges[e].next)
        add_edge(a, fresh, a->edges[e].token, a->edges[e].to);
    a->states[original].link = fresh;
    for (int32_t e; walk != NONE && (e = edge_of(a, walk, token)) != NONE && a->edges[e].to == original;
         walk = a->states[walk].link)
        a->edges[e].to = fresh;
    return fresh;
}

/* The state that follows `walk` by `edge`, or the shorter part of it that does so whatever comes before. */
static int32_t exactly_after(automaton *a, int32_t walk, int32_t edge) {
    const int32_t after = a->edges[edge].to;
    if (a->states[after].length == a->states[walk].length + 1) return after;
    return split(a, walk, a->edges[edge].token, after);
}

/* Indexes one more token of the current text. */
static void append(automaton *a, int32_t token) {
    const int32_t end = a->size++;
    a->states[ROOT].count++;
    a->states[ROOT].recent = end;
    int32_t walk = a->last, known = edge_of(a, walk, token);
    if (known != NONE) {
        a->last = exactly_after(a, walk, known);
    } else {
        const int32_t fresh = add_state(a, (state){.link = ROOT, .length = a->states[walk].length + 1, .recent = end});
        for (; walk != NONE && (known = edge_of(a, walk, token)) == NONE && !a->broken; walk = a->states[walk].link)
            add_edge(a, walk, token, fresh);
        if (walk != NONE && !a->broken) {
            const int32_t shorter = exactly_after(a, walk, known);
            a->states[fresh].link = shorter;
        }
        a->last = fresh;
    }
    walk = a->last;
    for (int32_t left = a->refresh_limit + 1; walk > ROOT && left; left--, walk = a->states[walk].link) {
        a->states[walk].count++;
        a->states[walk].recent = end;
    }
}

/* A context found in an index: its state, and how many tokens of it match. */
typedef struct {
    int32_t at, length;
} match;

/* The longest suffix of the current text that also occurred earlier. */
static match longest_suffix(const automaton *a) {
    int32_t at = a->last;
    while (at > ROOT && a->states[at].count <= 1) at = a->states[at].link;
    return (match){at, a->states[at].length};
}

/* The longest match after one more token. */
static match step(const automaton *a, match from, int32_t token) {
    int32_t found;
    while ((found = edge_of(a, from.at, token)) == NONE) {
        if (from.at == ROOT) return (match){ROOT, 0};
        from.at = a->states[from.at].link;
        from.length = a->states[from.at].length;
    }
    return (match){a->edges[found].to, from.length + 1};
}
#endif
