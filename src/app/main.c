/* The program longring. All of it is in the library. */
#include "app/command.h"

int main(int count, char **arguments) {
    return cp_command_line(count, arguments);
}
