/* Conversations with a model, all at the same turn: a question to each, and
 * its answer. Not the command that asks. */
#ifndef CP_CHAT_H
#define CP_CHAT_H

#include <signal.h>

#include "app/command.h"
#include "app/tape.h"
#include "model/template.h"

/* One conversation, and the answer that it gives or gave last. */
typedef struct {
    cp_ids said;    /* all its tokens: those that the session has, then those
                       to be fed; none of these: its turn is over */
    int64_t before; /* as many of them are of earlier turns... */
    int64_t asked;  /* ...and as many stand before this turn's answer */
    int64_t fed;    /* and as many the session had before its last call */
    int64_t alike;  /* of those the first, to be taken over from sequence 0
                       when that has read them; 0: none */
    int64_t left;   /* tokens that the answer may still have */
    bool ended;     /* its end stands in said: nothing more is drawn */
    double heard;   /* when its last token came */
    cp_sampler sampler;
    cp_ids answer;
} cp_speaker;

/* Why an answer was cut short. */
enum { CP_CUT_BY_MOST, CP_CUT_BY_ROOM, CP_CUT_BY_USER, CP_CUTS };

/* What a turn took. */
typedef struct {
    cp_turn_report prefill; /* all calls that read; its arrays are figures */
    int64_t *figures;       /* [4][ranks] queries, keys, bytes, pairs; owned */
    int64_t pieces;         /* calls that read */
    int64_t shared; /* tokens taken over from another, and not read again */
    char
        *drawing; /* the last one's plan, as a page, if chat->forgives; owned */
    double first_seconds;  /* until the first token of any answer */
    double last_seconds;   /* and of all */
    double stall;          /* the longest between two tokens of an answer */
    double decode_seconds; /* of all decode steps */
    int64_t steps;         /* of decode */
    int64_t decode_bytes;  /* of the busiest rank, in the last step */
    int64_t decode_hops;
    int64_t tokens;          /* in the answers */
    int64_t drafted, stayed; /* guesses, and how many were right */
    int64_t cuts[CP_CUTS];   /* answers that were cut short, by why */
    int64_t waited; /* conversations that waited until rows were free */
} cp_cost;

typedef struct {
    /* The caller fills these in. */
    int64_t sequences;
    int64_t most;       /* tokens of an answer */
    int64_t draft;      /* tokens that are guessed for each step; or 0 */
    int64_t budget;     /* tokens of a call that reads; 0: any number */
    cp_sampler sampler; /* of the first; each has its own */
    bool live;          /* the answer is shown while it comes */
    bool forgives;      /* an interrupt ends the answer, and no more */
    volatile sig_atomic_t *stop;
    cp_screen screen;
    cp_progress progress;
    cp_opened opened;     /* by the caller: its path */
    cp_template template; /* by the caller */
    cp_session *session;
    char *document; /* before the next questions; owned. NULL: none */
    int64_t document_bytes;
    bool unread; /* it is not yet in the conversation */
    /* What a turn leaves behind. */
    cp_speaker *speakers; /* [sequences] */
    cp_cost cost;
    cp_tape tape;
    int64_t open;  /* the first so many conversations do not wait for rows */
    double start;  /* of the turn */
    bool stopping; /* the user has had enough of this answer */
} cp_chat;

/* Ask questions[s] of each sequence s, and let it answer; cost says what it
 * took. Of several sequences, those for which too few rows are free wait until
 * others have answered, which then forget what was said. Fails with CP_CAPACITY
 * where there is no room for an answer. After a
 * failure the conversations are as they were. */
cp_status cp_chat_ask(cp_chat *chat, const char *const *questions);

/* The figures are of so many ranks. */
void cp_cost_point(cp_cost *cost, int ranks);

/* What is said from here on a failure takes back: mark it. */
void cp_chat_mark(cp_chat *chat);

/* After a failure: if a rank is lost and the others can go on, take back what
 * was said since the mark and read again what that rank held. All is then as at
 * the mark, and what has failed may be done again; else *status says why it
 * cannot. */
bool cp_chat_mend(cp_chat *chat, cp_status *status);

/* Room for the answers. Fails with CP_MEMORY. */
cp_status cp_chat_open(cp_chat *chat);

/* Begin anew; the document is before the next questions once more. Fails as
 * cp_session_truncate does. */
cp_status cp_chat_clear(cp_chat *chat);

/* Write the conversations to a file, or have the session, which is empty, and
 * the speakers go on as a file says; tokens becomes how many that are. Fail as
 * cp_keep_write and cp_keep_read do; nothing is changed then, but an empty
 * session stays empty. */
cp_status cp_chat_save(cp_chat *chat, const char *path, int64_t *bytes);
cp_status cp_chat_load(cp_chat *chat, const char *path, int64_t *tokens);

/* Show the answer of a sequence. */
void cp_chat_show(cp_chat *chat, int64_t sequence);

/* Print what the turn took: all of it, or in a line. */
void cp_chat_cost_page(const cp_chat *chat);
void cp_chat_cost_line(cp_chat *chat, bool terminal);

/* Free all that is opened, the session and the document too. */
void cp_chat_close(cp_chat *chat);

#endif
