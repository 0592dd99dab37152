/* Conversations with a model, all at the same turn: a question to each, and its
 * answer; or a single one, typed, saved and loaded. Not the command itself. */
#ifndef CP_CHAT_H
#define CP_CHAT_H

#include <signal.h>

#include "app/command.h"
#include "app/cost.h"
#include "app/io.h"
#include "app/opened.h"
#include "app/transcript.h"
#include "model/template.h"

/* A pause: the empty lines between a thought and what is said. */
typedef enum { CP_SPEAKS, CP_THINKS, CP_PAUSES } cp_mood;

/* One conversation, and its current or last answer. */
typedef struct {
    cp_ids tokens; /* all its tokens: those in the session, then those still to
                      be fed; if none of the latter, its turn is over */
    int64_t turn_start;   /* tokens of earlier turns */
    int64_t answer_start; /* tokens before this turn's answer */
    int64_t cached; /* tokens that were in the session before its last call */
    int64_t
        shared_prefix; /* length of the prefix to be taken over from sequence 0
                       when that has read it; 0: none */
    int64_t left;      /* tokens that the answer may still get */
    bool thinks;       /* its answer begins within a thought */
    bool ended;        /* tokens includes its end: nothing more is drawn */
    double last_token_time; /* when its last token came */
    cp_sampler sampler;
    cp_ids answer;
} cp_conversation;

typedef struct {
    /* The caller fills these in. */
    int64_t sequences;
    int64_t most;           /* tokens of an answer */
    int64_t draft;          /* tokens guessed for each step; or 0 */
    int64_t budget;         /* tokens of a reading call; 0: any number */
    int64_t capacity, rows; /* as the options of a session */
    cp_command_ring ring;   /* its ranks and variant can change */
    cp_sampler sampler; /* the first sequence's; the others derive their own */
    bool live;          /* the answer is shown as it arrives */
    bool hides;         /* thoughts, <think> to </think>, are not shown */
    volatile sig_atomic_t *stop;       /* an interrupt sets it */
    volatile sig_atomic_t *interrupts; /* since a question: how many */
    const char *file, *trace;          /* a document, an output; or NULL */
    cp_screen screen;
    cp_progress progress;
    cp_opened opened;     /* the caller sets its path */
    cp_template template; /* the caller sets it */
    cp_session *session;
    char *document; /* goes before the next questions; owned. NULL: none */
    int64_t document_bytes;
    bool unread; /* it is not yet in the conversation */
    /* What a turn leaves behind. */
    cp_conversation *conversations; /* [sequences] */
    cp_cost cost;
    cp_transcript transcript;
    bool interruptible; /* an interrupt ends the answer, not the program */
    int64_t open;  /* the first `open` conversations do not wait for rows */
    bool stopping; /* the user has stopped this answer */
    cp_mood mood;  /* of what comes next in the answer that is shown */
} cp_chat;

/* Make room for the answers, and open the first session. Fails with CP_MEMORY,
 * and as cp_session_open does. */
cp_status cp_chat_open(cp_chat *chat);

/* Replace the session by an empty one over this many ranks, with each prefill
 * by that variant. Fails as cp_session_open does; then there is none. */
cp_status cp_chat_session(cp_chat *chat, int64_t ranks, cp_variant variant);

/* Ask each sequence s questions[s], and let it answer; cost says what that
 * took. If too few rows are free for all sequences, some wait until others have
 * answered; those are then cleared. Fails with CP_CAPACITY where there is no
 * room for an answer. After a failure the conversations are as they were. */
cp_status cp_chat_ask(cp_chat *chat, const char *const *questions);

/* Show an answer from that token on; its line has not ended then. */
void cp_answer_show(cp_chat *chat, const cp_conversation *conversation,
                    int64_t from);

/* Converse line by line: read questions, and commands such as /plan, from
 * standard input to its end, and print what each asks for, or on stderr why it
 * failed. With prompts, both are a terminal; otherwise fails, in the end, as
 * the first question that failed. */
cp_status cp_chat_converse(cp_chat *chat, bool prompts);

/* Save the one conversation to a file, or load a file into it and the session,
 * which must be empty; print its size. These fail as
 * cp_saved_conversation_write and cp_saved_conversation_load do, and where the
 * file is another of the chat; nothing has changed then, and the session is
 * still empty. */
cp_status cp_chat_save(cp_chat *chat, const char *path);
cp_status cp_chat_load(cp_chat *chat, const char *path);

/* Free all that was opened, including the session and the document. */
void cp_chat_close(cp_chat *chat);

/* Mark this state: cp_chat_recover goes back to it after a failure. */
void cp_chat_mark(cp_chat *chat);

/* After a failure: if a rank is lost and the others can go on, take back what
 * was said since the mark, and read again what that rank held. Returns true if
 * all is then as at the mark, so that the failed call may be made again;
 * otherwise *status says why it cannot. */
bool cp_chat_recover(cp_chat *chat, cp_status *status);

/* Append a question's tokens to a sequence, after what the template keeps of
 * the answer before it. */
cp_status cp_question_add(cp_chat *chat, const char *question,
                          int64_t sequence);

#endif
