/* Tangled from book/15-machines.nw; edit the chapter. */
/* Machine descriptions, read and written by the table of fields. */
#include "predict/machine.h"

cp_description cp_hardware_description(cp_hardware *hardware) {
#define ROW(...) CP_FIELD_ROW(cp_hardware, __VA_ARGS__)
    static const cp_field fields[] = {CP_HARDWARE(ROW)};
#undef ROW
    return (cp_description){"machine",          fields,
                            CP_HARDWARE_FIELDS, hardware,
                            hardware->origins,  hardware->name};
}

cp_status cp_hardware_parse(const char *label, const char *text,
                            cp_hardware *hardware) {
    *hardware = (cp_hardware){.name = ""};
    const cp_description description = cp_hardware_description(hardware);
    return cp_description_parse(&description, label, text);
}

cp_status cp_hardware_read(const char *name, cp_hardware *hardware) {
    *hardware = (cp_hardware){.name = ""};
    const cp_description description = cp_hardware_description(hardware);
    return cp_description_read(&description, name);
}

void cp_hardware_write(const cp_hardware *hardware, FILE *out) {
    cp_hardware copy = *hardware;
    const cp_description description = cp_hardware_description(&copy);
    cp_description_write(&description, out);
}
