/* A libnvidia-ml.so.1 for machines without a GPU.
 *
 * It knows what the file named by NVML_STUB says at the moment of the call, a line per GPU, fields separated by tabs:
 *
 *     uuid  name  energy_mJ  power_mW  lowest_limit_mW  highest_limit_mW  enforced_limit_mW  mig_mode
 *
 * A field "-" is not supported by that GPU; an energy "+" counts up every 20 ms at the GPU's power, as a real counter
 * does; a uuid "lost" is a GPU that fell off the bus. No file: no driver. Every reading of power adds a byte to the file
 * named by NVML_STUB with ".reads" behind it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7, DRIVER_NOT_LOADED = 9, GPU_IS_LOST = 15 };
enum { UUID, NAME, ENERGY, POWER, LOWEST, HIGHEST, ENFORCED, MIG, FIELDS };

/* Copies one field of GPU `device` (counted from 1, as our handles are). */
static int field(void *device, int wanted, char *value, size_t size) {
    char line[1024];
    size_t number = 0;
    int status = GPU_IS_LOST;
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    if (!file) return DRIVER_NOT_LOADED;
    while (fgets(line, sizeof line, file)) {
        char *rest = line, *part = NULL;
        if (++number != (size_t)device) continue;
        line[strcspn(line, "\n")] = '\0';
        if (strncmp(line, "lost\t", 5) == 0) break;
        for (int i = 0; i <= wanted && rest; i++) part = strsep(&rest, "\t");
        if (!part) status = INVALID_ARGUMENT;
        else if (strcmp(part, "-") == 0) status = NOT_SUPPORTED;
        else if (strlen(part) >= size) status = INSUFFICIENT_SIZE;
        else status = (strcpy(value, part), SUCCESS);
    }
    fclose(file);
    return status;
}

static int number32(void *device, int wanted, unsigned *value) {
    char text[32];
    int status = field(device, wanted, text, sizeof text);
    if (status == SUCCESS) *value = (unsigned)strtoul(text, NULL, 10);
    return status;
}

/* What a counter shows that follows the clock in steps of 20 ms. */
static int counted(void *device, unsigned long long *millijoules) {
    struct timespec now;
    unsigned milliwatts;
    int status = number32(device, POWER, &milliwatts);
    clock_gettime(CLOCK_MONOTONIC, &now);
    *millijoules = ((unsigned long long)now.tv_sec * 50 + now.tv_nsec / 20000000) * milliwatts / 50;
    return status;
}

int nvmlInitWithFlags(unsigned flags) {
    FILE *file = flags == 0 ? fopen(getenv("NVML_STUB"), "r") : NULL;
    if (!file) return DRIVER_NOT_LOADED;
    fclose(file);
    return SUCCESS;
}

int nvmlShutdown(void) { return SUCCESS; }

const char *nvmlErrorString(int status) { (void)status; return "an error of the stub"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    char line[1024];
    FILE *file = fopen(getenv("NVML_STUB"), "r");
    if (!file) return DRIVER_NOT_LOADED;
    for (*count = 0; fgets(line, sizeof line, file);) ++*count;
    fclose(file);
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **device) {
    char uuid[96];
    *device = (void *)((size_t)index + 1);
    return field(*device, UUID, uuid, sizeof uuid);
}

int nvmlDeviceGetName(void *device, char *name, unsigned size) { return field(device, NAME, name, size); }

int nvmlDeviceGetUUID(void *device, char *uuid, unsigned size) { return field(device, UUID, uuid, size); }

int nvmlDeviceGetTotalEnergyConsumption(void *device, unsigned long long *millijoules) {
    char text[32];
    int status = field(device, ENERGY, text, sizeof text);
    if (status == SUCCESS && strcmp(text, "+") == 0) return counted(device, millijoules);
    if (status == SUCCESS) *millijoules = strtoull(text, NULL, 10);
    return status;
}

int nvmlDeviceGetPowerUsage(void *device, unsigned *milliwatts) {
    char path[4096];
    int status = number32(device, POWER, milliwatts);
    snprintf(path, sizeof path, "%s.reads", getenv("NVML_STUB"));
    FILE *reads = fopen(path, "a");
    if (!reads) return INVALID_ARGUMENT;
    fputc('.', reads);
    fclose(reads);
    return status;
}

int nvmlDeviceGetPowerManagementLimitConstraints(void *device, unsigned *lowest, unsigned *highest) {
    int status = number32(device, LOWEST, lowest);
    return status == SUCCESS ? number32(device, HIGHEST, highest) : status;
}

int nvmlDeviceGetEnforcedPowerLimit(void *device, unsigned *milliwatts) { return number32(device, ENFORCED, milliwatts); }

int nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending) {
    int status = number32(device, MIG, current);
    *pending = *current;
    return status;
}

/* Volta where energy is counted, Pascal elsewhere, which is how Zeus tells which GPUs count. */
int nvmlDeviceGetArchitecture(void *device, unsigned *architecture) {
    char text[32];
    int status = field(device, ENERGY, text, sizeof text);
    *architecture = status == SUCCESS ? 5 : 4;
    return status == NOT_SUPPORTED ? SUCCESS : status;
}

/* Power limits that can be set: a GPU's stands in the file named by NVML_STUB with ".limit." and its uuid behind it,
 * and is the enforced one of its line while there is none; the highest is the default. Every attempt to set one adds a
 * line "uuid<tab>mW" to the file with ".sets" behind it; while there is one with ".readonly", none is permitted.
 */
enum { NO_PERMISSION = 4, NOT_FOUND = 6 };

static FILE *beside(const char *suffix, const char *uuid, const char *mode) {
    char path[4096];
    snprintf(path, sizeof path, "%s%s%s", getenv("NVML_STUB"), suffix, uuid);
    return fopen(path, mode);
}

int nvmlDeviceGetHandleByUUID(const char *wanted, void **device) {
    char uuid[96];
    for (size_t number = 1;; number++) {
        int status = field((void *)number, UUID, uuid, sizeof uuid);
        if (status != SUCCESS) return number > 64 ? NOT_FOUND : status;
        if (strcmp(uuid, wanted) == 0) return *device = (void *)number, SUCCESS;
    }
}

int nvmlDeviceGetPowerManagementDefaultLimit(void *device, unsigned *milliwatts) { return number32(device, HIGHEST, milliwatts); }

int nvmlDeviceGetPowerManagementLimit(void *device, unsigned *milliwatts) {
    char uuid[96];
    int status = field(device, UUID, uuid, sizeof uuid);
    if (status != SUCCESS) return status;
    FILE *file = beside(".limit.", uuid, "r");
    if (!file) return number32(device, ENFORCED, milliwatts);
    status = fscanf(file, "%u", milliwatts) == 1 ? SUCCESS : INVALID_ARGUMENT;
    fclose(file);
    return status;
}

int nvmlDeviceSetPowerManagementLimit(void *device, unsigned milliwatts) {
    char uuid[96];
    unsigned lowest, highest;
    int status = field(device, UUID, uuid, sizeof uuid);
    if (status == SUCCESS) status = nvmlDeviceGetPowerManagementLimitConstraints(device, &lowest, &highest);
    if (status != SUCCESS) return status;
    FILE *file = beside(".readonly", "", "r");
    if (file) return fclose(file), NO_PERMISSION;
    if (milliwatts < lowest || milliwatts > highest) return INVALID_ARGUMENT;
    if (!(file = beside(".sets", "", "a"))) return INVALID_ARGUMENT;
    fprintf(file, "%s\t%u\n", uuid, milliwatts);
    fclose(file);
    if (!(file = beside(".limit.", uuid, "w"))) return INVALID_ARGUMENT;
    fprintf(file, "%u\n", milliwatts);
    fclose(file);
    return SUCCESS;
}
