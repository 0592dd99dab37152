/* Tangled from book/91-command-line.nw; edit the chapter. */
/* The program longring. All of it is in the library. */
#include "command.h"

int main(int count, char **arguments) {
    return cp_command_line(count, arguments);
}
