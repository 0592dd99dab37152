/* What the commands name of a system and wasi-libc does not declare. */
char *realpath(const char *path, char *resolved);
char *basename(const char *path);
