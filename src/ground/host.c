/* What this machine is, in the words of the data files' first line. */
#define _GNU_SOURCE
#include "ground/host.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

#ifndef CP_COMMIT
#define CP_COMMIT "unknown"
#endif

void cp_host_fact(const char *path, const char *key, char text[128]) {
    char line[4096];
    FILE *file = fopen(path, "r");
    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (strncmp(line, key, strlen(key)) != 0)
            continue;
        const char *value = line + strlen(key);
        value += strspn(value, "\t :=\"");
        snprintf(text, 128, "%.*s", (int)strcspn(value, "\"\n"), value);
        break;
    }
    if (file != NULL)
        fclose(file);
}

static int zen_generation(void) {
    char family[128] = "", model[128] = "";
    cp_host_fact("/proc/cpuinfo", "cpu family", family);
    cp_host_fact("/proc/cpuinfo", "model\t", model);
    const long m = strtol(model, NULL, 10);
    if (strcmp(family, "26") == 0)
        return 5;
    if (strcmp(family, "25") != 0)
        return 0;
    return m < 0x10 || (m >= 0x20 && m < 0x60) ? 3 : 4;
}

static void processor_name(char text[160]) {
    char name[128] = "an unknown kind";
    struct utsname system;
    if (uname(&system) == 0)
        snprintf(name, sizeof(name), "%s", system.machine);
    cp_host_fact("/proc/cpuinfo", "model name", name);
    const int zen = strstr(name, "AMD") != NULL ? zen_generation() : 0;
    if (zen > 0)
        snprintf(text, 160, "%s (Zen %d)",
                 strstr(name, "EPYC") != NULL ? "AMD EPYC" : name, zen);
    else
        snprintf(text, 160, "%s", name);
}

int cp_host_cores(void) {
    cpu_set_t mine;
    if (sched_getaffinity(0, sizeof(mine), &mine) == 0)
        return CPU_COUNT(&mine);
    return (int)cp_max(1, sysconf(_SC_NPROCESSORS_ONLN));
}

void cp_host_describe(char *text, size_t size) {
    char name[160], system[128] = "Linux", version[128] = "";
    processor_name(name);
    cp_host_fact("/etc/os-release", "NAME", system);
    cp_host_fact("/etc/os-release", "VERSION_ID", version);
    system[strcspn(system, " ")] = '\0';
#ifdef __clang__
    const char *compiler = "clang " __clang_version__;
#else
    const char *compiler = "gcc " __VERSION__;
#endif
    snprintf(text, size, "%d cores of %s, %s%s%s, %s", cp_host_cores(), name,
             system, version[0] != '\0' ? " " : "", version, compiler);
}

void cp_host_sign(FILE *out) {
    char machine[320], date[32];
    const time_t today = time(NULL);
    cp_host_describe(machine, sizeof(machine));
    strftime(date, sizeof(date), "%Y-%m-%d", localtime(&today));
    fprintf(out, "# machine: %s\n# date: %s\n# commit: %s\n", machine, date,
            CP_COMMIT);
}
