/* A libamd_smi.so for machines without one of AMD's GPUs, with the structs of amdsmi 7.0.2.
 *
 * It knows what the file named by AMDSMI_STUB says at the moment of the call, a line per GPU, fields separated by tabs:
 *
 *     serial  name  energy_steps  step_uJ  current_W  average_W  limit_uW  highest_limit_uW  hip_id  partition
 *
 * A field "-" is not supported by that GPU; a serial "lost" is a GPU that fails. No file: no driver. What else the Python
 * package looks for is generated beside it, and supports nothing.
 */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID = 1, NOT_SUPPORTED = 2, API_FAILED = 7, DRIVER_NOT_LOADED = 34 };
enum { SERIAL, NAME, STEPS, STEP, CURRENT, AVERAGE, LIMIT, HIGHEST, HIP_ID, PARTITION };

typedef struct {
    char market_name[256];
    uint32_t vendor_id;
    char vendor_name[256];
    uint32_t subvendor_id;
    uint64_t device_id;
    uint32_t rev_id;
    char asic_serial[256];
    uint32_t oam_id, compute_units;
    uint64_t graphics_version;
    uint32_t subsystem_id, reserved[21];
} asic_info;

typedef struct {
    uint32_t drm_render, drm_card, hsa_id, hip_id;
    char hip_uuid[256];
} enumeration_info;

typedef struct {
    uint64_t socket_power;
    uint32_t current_socket_power, average_socket_power;
    uint64_t gfx_voltage, soc_voltage, mem_voltage;
    uint32_t power_limit;
    uint64_t reserved[18];
} power_info;

typedef struct {
    uint64_t power_cap, default_power_cap, dpm_cap, min_power_cap, max_power_cap, reserved[3];
} power_cap_info;

/* Copies one field of GPU `device` (counted from 1, as our handles are). */
static int field(void *device, int wanted, char *value, size_t size) {
    char line[1024];
    size_t number = 0;
    int status = API_FAILED;
    FILE *file = fopen(getenv("AMDSMI_STUB"), "r");
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        char *rest = line, *part = NULL;
        if (++number != (size_t)device) continue;
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "lost\t", 5) == 0) break;
        for (int i = 0; i <= wanted && rest; i++) part = strsep(&rest, "\t");
        if (!part || strlen(part) >= size) status = INVALID;
        else if (strcmp(part, "-") == 0) status = NOT_SUPPORTED;
        else status = (strcpy(value, part), SUCCESS);
    }
    fclose(file);
    return status;
}

/* A number, or the `otherwise` of a field that is not supported. */
static int number(void *device, int wanted, uint64_t otherwise, uint64_t *value) {
    char text[64];
    int status = field(device, wanted, text, sizeof text);
    *value = status == SUCCESS ? strtoull(text, NULL, 10) : otherwise;
    return status == NOT_SUPPORTED ? SUCCESS : status;
}

int amdsmi_init(uint64_t flags) {
    FILE *file = fopen(getenv("AMDSMI_STUB"), "r");
    (void)flags;
    if (!file) return DRIVER_NOT_LOADED;
    fclose(file);
    return SUCCESS;
}

int amdsmi_shut_down(void) { return SUCCESS; }

int amdsmi_get_socket_handles(uint32_t *count, void **sockets) {
    if (sockets) sockets[0] = (void *)1;
    *count = 1;
    return SUCCESS;
}

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **processors) {
    char line[1024];
    uint32_t found = 0;
    FILE *file = fopen(getenv("AMDSMI_STUB"), "r");
    (void)socket;
    if (!file) return DRIVER_NOT_LOADED;
    for (; fgets(line, sizeof line, file); found++)
        if (processors && found < *count) processors[found] = (void *)((size_t)found + 1);
    fclose(file);
    *count = found;
    return SUCCESS;
}

int amdsmi_get_gpu_asic_info(void *device, asic_info *info) {
    memset(info, 0, sizeof *info);
    int status = field(device, SERIAL, info->asic_serial, sizeof info->asic_serial);
    return status == SUCCESS ? field(device, NAME, info->market_name, sizeof info->market_name) : status;
}

int amdsmi_get_gpu_enumeration_info(void *device, enumeration_info *info) {
    char serial[64], text[64];
    int status = field(device, HIP_ID, text, sizeof text);
    if (status == SUCCESS) status = field(device, SERIAL, serial, sizeof serial);
    if (status != SUCCESS) return status;
    memset(info, 0, sizeof *info);
    info->hip_id = (uint32_t)strtoul(text, NULL, 10);
    snprintf(info->hip_uuid, sizeof info->hip_uuid, "GPU-%s", serial);
    return SUCCESS;
}

int amdsmi_get_gpu_compute_partition(void *device, char *partition, uint32_t size) {
    return field(device, PARTITION, partition, size);
}

int amdsmi_get_energy_count(void *device, uint64_t *steps, float *microjoules, uint64_t *timestamp) {
    char text[64];
    int status = field(device, STEP, text, sizeof text);
    if (status != SUCCESS) return status;
    *microjoules = strtof(text, NULL);
    *timestamp = 0;
    return number(device, STEPS, 0, steps);
}

int amdsmi_get_power_info(void *device, power_info *info) {
    uint64_t current, average;
    int status = number(device, CURRENT, 0xFFFF, &current);
    if (status == SUCCESS) status = number(device, AVERAGE, 0xFFFF, &average);
    if (status != SUCCESS) return status;
    memset(info, 0, sizeof *info);
    info->socket_power = 0xFFFF;
    info->current_socket_power = (uint32_t)current;
    info->average_socket_power = (uint32_t)average;
    return SUCCESS;
}

int amdsmi_get_power_cap_info(void *device, uint32_t sensor, power_cap_info *info) {
    char text[64];
    int status = field(device, LIMIT, text, sizeof text);
    if (status != SUCCESS) return status;
    memset(info, 0, sizeof *info);
    info->power_cap = strtoull(text, NULL, 10);
    return sensor == 0 ? number(device, HIGHEST, 0, &info->max_power_cap) : INVALID;
}
