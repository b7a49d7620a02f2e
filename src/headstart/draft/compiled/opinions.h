/* What the target ranked best after the same one or two tokens, as in recycle.py. */
#ifndef HEADSTART_OPINIONS_H
#define HEADSTART_OPINIONS_H

#include "blend.h"

#define OPINIONS 4
#define MOST_SUCCESSORS 16
#define KEPT 12
#define FADE 0.7
#define LONGEST 2
#define NOBODY (-1) /* the token before, in a context of one */
static const double RANK_WEIGHT[] = {1.0, 0.4, 0.25, 0.2, 0.15, 0.1, 0.08, 0.06};
static const double ESCAPE[][OPINIONS] = {{0}, {0.7, 0.6, 0.5, 0.4}, {0.5, 0.4, 0.3, 0.25}};

/* The target's latest rankings after one context. */
typedef struct {
    int32_t before, last; /* the context */
    int32_t heard, newest;
    int32_t kept;           /* tokens of the law, NONE if it must be made again */
    int32_t older, newer;   /* by when they were heard */
    int32_t next;           /* of the same hash, or free */
    int32_t tokens[KEPT];
    double shares[KEPT];
    int32_t sizes[OPINIONS], ranked[OPINIONS][MOST_SUCCESSORS];
} opinions;

/* One tenant's. */
typedef struct {
    opinions *all;
    int32_t *heads; /* first of each hash */
    int64_t room, taken, heads_room, size;
    int32_t oldest, newest, free;
} table;

static opinions *opinions_after(const table *t, int32_t before, int32_t last) {
    if (!t->size) return NULL;
    for (int32_t at = t->heads[hash(before, last, t->heads_room)]; at != NONE; at = t->all[at].next)
        if (t->all[at].last == last && t->all[at].before == before) return t->all + at;
    return NULL;
}

static void unlink_age(table *t, int32_t number) {
    const opinions *of = t->all + number;
    *(of->older == NONE ? &t->oldest : &t->all[of->older].newer) = of->newer;
    *(of->newer == NONE ? &t->newest : &t->all[of->newer].older) = of->older;
}

static void make_newest(table *t, int32_t number) {
    t->all[number].older = t->newest;
    t->all[number].newer = NONE;
    *(t->newest == NONE ? &t->oldest : &t->all[t->newest].newer) = number;
    t->newest = number;
}

static void put_head(table *t, int32_t number) {
    int32_t *head = t->heads + hash(t->all[number].before, t->all[number].last, t->heads_room);
    t->all[number].next = *head;
    *head = number;
}

static int heads_grown(table *t) {
    if (t->size < t->heads_room) return 1;
    if (!emptied(&t->heads, &t->heads_room, 256)) return 0;
    for (int32_t i = t->oldest; i != NONE; i = t->all[i].newer) put_head(t, i);
    return 1;
}

/* The opinions after a context, made if there are none, and now the newest; NULL where there is no memory. */
static opinions *opinions_of(table *t, int32_t before, int32_t last) {
    opinions *known = opinions_after(t, before, last);
    if (known) {
        const int32_t number = (int32_t)(known - t->all);
        unlink_age(t, number);
        make_newest(t, number);
        return known;
    }
    if (!heads_grown(t)) return NULL;
    int32_t number = t->free;
    if (number != NONE) {
        t->free = t->all[number].next;
    } else {
        if (!grown((void **)&t->all, t->taken, &t->room, sizeof *t->all)) return NULL;
        number = (int32_t)t->taken++;
    }
    t->all[number] = (opinions){.before = before, .last = last, .kept = NONE};
    put_head(t, number);
    make_newest(t, number);
    t->size++;
    return t->all + number;
}

static void drop_oldest(table *t) {
    const int32_t number = t->oldest;
    int32_t *link = t->heads + hash(t->all[number].before, t->all[number].last, t->heads_room);
    while (*link != number) link = &t->all[*link].next;
    *link = t->all[number].next;
    unlink_age(t, number);
    t->all[number].next = t->free;
    t->free = number;
    t->size--;
}

/* One more ranking, best first. */
static void hear(opinions *of, const int32_t *ranked, int32_t size) {
    of->newest = (of->newest + OPINIONS - 1) % OPINIONS;
    if (of->heard < OPINIONS) of->heard++;
    of->sizes[of->newest] = size;
    memcpy(of->ranked[of->newest], ranked, size * sizeof *ranked);
    of->kept = NONE;
}

/* Merges all rankings into one law. */
static void merge(opinions *of) {
    int32_t tokens[OPINIONS * MOST_SUCCESSORS], size = 0;
    double weights[OPINIONS * MOST_SUCCESSORS], scale = 1.0, total = 0.0;
    for (int32_t o = 0; o < of->heard; o++, scale *= FADE) {
        const int32_t from = (of->newest + o) % OPINIONS;
        for (int32_t place = 0; place < of->sizes[from]; place++) {
            const double weight = scale * RANK_WEIGHT[place < 8 ? place : 7];
            int32_t at = 0;
            while (at < size && tokens[at] != of->ranked[from][place]) at++;
            if (at == size) {
                tokens[size] = of->ranked[from][place];
                weights[size++] = 0.0;
            }
            weights[at] += weight;
        }
    }
    of->kept = 0;
    for (int32_t i = 0; i < size; i++) { /* the heaviest, those that came first before their equals */
        int32_t place = of->kept;
        while (place > 0 && of->shares[place - 1] < weights[i]) place--;
        if (place == KEPT) continue;
        if (of->kept < KEPT) of->kept++;
        for (int32_t j = of->kept - 1; j > place; j--) {
            of->tokens[j] = of->tokens[j - 1];
            of->shares[j] = of->shares[j - 1];
        }
        of->tokens[place] = tokens[i];
        of->shares[place] = weights[i];
    }
    for (int32_t i = 0; i < of->kept; i++) total += of->shares[i];
    for (int32_t i = 0; i < of->kept; i++) of->shares[i] /= total;
}

/* Adds the law after `length` tokens, and returns the share of `mass` that escapes. */
static double add_opinions(const table *t, int32_t before, int32_t last, int32_t length, law *to, double mass) {
    opinions *of = opinions_after(t, length == 1 ? NOBODY : before, last);
    if (!of) return 1.0;
    if (of->kept == NONE) merge(of);
    const double escape = ESCAPE[length][of->heard - 1], share = mass * (1.0 - escape);
    for (int32_t i = 0; i < of->kept; i++) add_share(to, of->tokens[i], share * of->shares[i]);
    return escape;
}
#endif
