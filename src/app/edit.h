/* Lines that a user types at a terminal, edited by libedit where that is
 * installed: arrows, a history, lines of any length. Not needed to build. */
#ifndef CP_EDIT_H
#define CP_EDIT_H

#include <stdbool.h>
#include <sys/types.h>

/* Look for the library; false: there is none, or TERM is dumb, and lines are the
 * terminal's. */
bool cp_edit_open(void);

/* The next line, without its end, in place of what *text has, and its bytes; -1
 * at the end of the input. *text is the caller's to free. After cp_edit_open. */
ssize_t cp_edit_read(const char *prompt, char **text);

/* Give the terminal back as it was when the library was opened. May be called
 * from a signal handler, and without one. */
void cp_edit_restore(void);

#endif
