/* What a turn of conversations cost: added up call by call, then printed. Not
 * what was said. */
#ifndef CP_COST_H
#define CP_COST_H

#include "model/session.h"

/* What a rank did when the questions were read. */
typedef struct {
    int64_t queries, bytes, pairs; /* of all calls */
    int64_t keys;                  /* of the last one */
} cp_rank_cost;

/* Why an answer was cut short. */
enum { CP_CUT_BY_MOST, CP_CUT_BY_ROOM, CP_CUT_BY_USER, CP_CUTS };

typedef struct {
    /* The caller sets these when the turn begins. */
    int64_t answers; /* how many */
    int64_t most;    /* tokens of one */
    int64_t draft;   /* tokens guessed for each step */
    double start;    /* when that was */
    /* What has been added up. */
    cp_turn_report prefill; /* all reading calls; its arrays are NULL */
    cp_rank_cost *ranks;    /* [prefill.ranks]; owned */
    int64_t pieces;         /* reading calls */
    int64_t shared; /* tokens taken over from sequence 0 instead of read */
    char *drawing;  /* the last plan, a page, or NULL; owned */
    double first_seconds;  /* until the first token of any answer */
    double last_seconds;   /* until the first token of every answer */
    double stall;          /* the longest between two tokens of an answer */
    double decode_seconds; /* of all decode steps */
    int64_t steps;         /* decode steps */
    int64_t decode_bytes;  /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t tokens;          /* in the answers */
    int64_t drafted, stayed; /* tokens guessed, and how many were right */
    int64_t cuts[CP_CUTS];   /* answers that were cut short, by why */
    int64_t waited; /* conversations that waited until rows were free */
} cp_cost;

/* Free what a turn left; all is zero then. */
void cp_cost_clear(cp_cost *cost);

/* Add a decode step, or a reading call; its plan is drawn unless drawn is NULL.
 * Fails with CP_MEMORY. */
cp_status cp_cost_add(cp_cost *cost, bool decode, const cp_turn_report *report,
                      cp_session *drawn);

/* A token of an answer has come; the one before at that time, or 0: none.
 * Returns the time now. */
double cp_cost_token(cp_cost *cost, double before);

/* Forget what a rank did that is now lost. */
void cp_cost_drop_rank(cp_cost *cost, int lost);

/* Print a turn as a page, with a table of its ranks, or as a line, dim and
 * wrapped for a terminal. */
void cp_cost_page(const cp_cost *cost);
void cp_cost_line(cp_cost *cost, bool terminal);

/* Print the plan that was drawn and, after decode steps, the session's last
 * one. Fails with CP_INVALID where none was drawn. */
cp_status cp_cost_plan(const cp_cost *cost, const cp_session *session);

#endif
