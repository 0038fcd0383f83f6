/* A stand-in for NVIDIA's management library, for tests: what it answers stands in a text file.
 *
 * $HPCKIT_FAKE_NVML names the file, lines of `key = value`, read again whenever it changes, or a
 * folder of them, NODE.state for each $SLURMD_NODENAME; without it no driver is loaded. fake_nvml.py writes the file, and documents the keys. Layouts of structures are those
 * that nvidia-ml-py declares. Loads follow a time line, and energy, power and activity follow loads. */
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

enum { OK = 0, UNINITIALIZED = 1, INVALID = 2, UNSUPPORTED = 3, NOT_FOUND = 6, TIMED_OUT = 10, LOST = 15, UNLOADED = 9 };
enum { MOST_KEYS = 4096, MOST_GPUS = 64, MOST_PARTS = 8, EVENT_SETS = 16, GPM_SAMPLES = 512 };

typedef struct { char *key, *value; } Entry;
typedef struct { int gpu, part; } Device; /* part -1: the whole GPU */
typedef struct { unsigned version, state; double value[2]; int taken; } Sample;
typedef struct { int used; long seen; unsigned char listens[MOST_GPUS]; } EventSet;

static Entry entries[MOST_KEYS];
static int count;
static char *text;
static struct timespec changed;
static ino_t inode;
static int initialised;
static long generation;
static Device devices[MOST_GPUS][MOST_PARTS + 1];
static EventSet sets[EVENT_SETS];

static void load(void) {
    const char *path = getenv("HPCKIT_FAKE_NVML"), *node = getenv("SLURMD_NODENAME");
    char of_node[4096];
    struct stat now;
    if (path && !stat(path, &now) && S_ISDIR(now.st_mode)) {
        snprintf(of_node, sizeof of_node, "%s/%s.state", path, node ? node : "nvml");
        path = of_node;
    }
    if (!path || stat(path, &now)) { count = 0; inode = 0; return; }
    if (now.st_ino == inode && !memcmp(&now.st_mtim, &changed, sizeof changed)) return;
    FILE *file = fopen(path, "r");
    if (!file) return;
    free(text);
    text = calloc(1, now.st_size + 1);
    size_t got = fread(text, 1, now.st_size, file);
    text[got] = 0;
    fclose(file);
    inode = now.st_ino;
    changed = now.st_mtim;
    count = 0;
    for (char *line = strtok(text, "\n"); line && count < MOST_KEYS; line = strtok(NULL, "\n")) {
        char *equals = strstr(line, " = ");
        if (!equals) continue;
        *equals = 0;
        entries[count++] = (Entry){line, equals + 3};
    }
}

static const char *find(const char *format, ...) {
    char key[160];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(key, sizeof key, format, arguments);
    va_end(arguments);
    for (int i = 0; i < count; i++)
        if (!strcmp(entries[i].key, key)) return entries[i].value;
    return NULL;
}

static double number(const char *value, double otherwise) { return value ? atof(value) : otherwise; }
static double of_gpu(int gpu, const char *name, double otherwise) { return number(find("g%d.%s", gpu, name), otherwise); }

static double elapsed(void) {
    const char *fixed = find("now");
    if (fixed) return atof(fixed);
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    return now.tv_sec + now.tv_nsec / 1e9 - number(find("began"), 0);
}

/* The load at a time, between the knots `seconds:load` of a time line; and its integral from 0. */
static double load_of(const char *line, double at, double *integral) {
    double time = 0, value = 0, area = 0, next_time, next;
    int used, first = 1;
    while (line && sscanf(line, "%lf:%lf%n", &next_time, &next, &used) == 2) {
        if (first) { value = next; first = 0; }
        if (at < next_time) {
            double here = value + (next - value) * (at - time) / (next_time - time);
            *integral = area + (value + here) / 2 * (at - time);
            return here;
        }
        area += (value + next) / 2 * (next_time - time);
        time = next_time;
        value = next;
        line += used;
    }
    *integral = area + value * (at - time);
    return value;
}

static double gpu_load(Device one, double *integral) {
    const char *line = one.part < 0 ? find("g%d.load", one.gpu) : find("g%d.mig%d.load", one.gpu, one.part);
    return load_of(line, elapsed(), integral);
}

/* What a call has to return before it does anything else. */
static int fault(const char *call, const Device *one) {
    load();
    if (!initialised) return UNINITIALIZED;
    if (generation != (long)number(find("generation"), 0)) return UNINITIALIZED;
    if (number(find("driver.loaded"), 0) == 0) return UNLOADED;
    double hang = number(find("hang.%s", call), 0);
    if (hang > 0) nanosleep(&(struct timespec){(time_t)hang, (long)((hang - (time_t)hang) * 1e9)}, NULL);
    int code = (int)number(find("return.%s", call), OK);
    if (code || !one) return code;
    if (of_gpu(one->gpu, "lost", 0)) return LOST;
    return (int)number(find("g%d.return.%s", one->gpu, call), OK);
}

#define CHECK(one) do { int code = fault(__func__, one); if (code) return code; } while (0)
#define WHOLE(one) do { CHECK(one); if ((one)->part >= 0) return UNSUPPORTED; } while (0)

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    load();
    if (number(find("driver.loaded"), 0) == 0) return UNLOADED;
    int code = (int)number(find("return.nvmlInitWithFlags"), OK);
    if (code) return code;
    /* As the real one, it counts who has initialised it: only the last shutdown is one. */
    if (initialised++) return OK;
    generation = (long)number(find("generation"), 0);
    memset(sets, 0, sizeof sets);
    return OK;
}
int nvmlShutdown(void) { if (initialised) initialised--; return OK; }
const char *nvmlErrorString(int code) { static char words[40]; snprintf(words, sizeof words, "error %d of the fake", code); return words; }

static int copy(char *to, unsigned size, const char *from) { snprintf(to, size, "%s", from ? from : ""); return OK; }

int nvmlSystemGetDriverVersion(char *to, unsigned size) { CHECK(NULL); return copy(to, size, find("driver.version")); }
int nvmlSystemGetCudaDriverVersion_v2(int *to) {
    CHECK(NULL);
    double version = number(find("driver.cuda"), 0);
    if (!version) return UNSUPPORTED;
    *to = (int)version;
    return OK;
}
int nvmlDeviceGetCount_v2(unsigned *gpus) { CHECK(NULL); *gpus = (unsigned)number(find("gpus"), 0); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **to) {
    CHECK(NULL);
    if (index >= number(find("gpus"), 0) || index >= MOST_GPUS) return INVALID;
    Device *one = &devices[index][0];
    *one = (Device){(int)index, -1};
    *to = one;
    return fault(__func__, one);
}
int nvmlDeviceGetHandleByUUID(const char *uuid, Device **to) {
    CHECK(NULL);
    for (int gpu = 0; gpu < (int)number(find("gpus"), 0) && gpu < MOST_GPUS; gpu++) {
        const char *own = find("g%d.uuid", gpu);
        if (own && !strcmp(own, uuid)) return nvmlDeviceGetHandleByIndex_v2((unsigned)gpu, to);
    }
    return NOT_FOUND;
}
int nvmlDeviceGetUUID(Device *one, char *to, unsigned size) {
    CHECK(one);
    return copy(to, size, one->part < 0 ? find("g%d.uuid", one->gpu) : find("g%d.mig%d.uuid", one->gpu, one->part));
}
int nvmlDeviceGetName(Device *one, char *to, unsigned size) { CHECK(one); return copy(to, size, find("g%d.name", one->gpu)); }

int nvmlDeviceGetNvLinkState(Device *one, unsigned link, unsigned *to) {
    CHECK(one);
    if (link >= of_gpu(one->gpu, "nvlinks", 0)) return UNSUPPORTED;
    *to = link >= of_gpu(one->gpu, "nvlinks_down", 0);
    return OK;
}
static int pcie(const Device *one, const char *now, const char *most, unsigned *to) {
    *to = (unsigned)of_gpu(one->gpu, now, of_gpu(one->gpu, most, 0));
    return *to ? OK : UNSUPPORTED;
}
int nvmlDeviceGetMaxPcieLinkGeneration(Device *one, unsigned *to) { CHECK(one); return pcie(one, "pcie_generation", "pcie_generation", to); }
int nvmlDeviceGetMaxPcieLinkWidth(Device *one, unsigned *to) { CHECK(one); return pcie(one, "pcie_width", "pcie_width", to); }
int nvmlDeviceGetCurrPcieLinkGeneration(Device *one, unsigned *to) { CHECK(one); return pcie(one, "pcie_generation_now", "pcie_generation", to); }
int nvmlDeviceGetCurrPcieLinkWidth(Device *one, unsigned *to) { CHECK(one); return pcie(one, "pcie_width_now", "pcie_width", to); }

typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } Pci;
int nvmlDeviceGetPciInfo_v3(Device *one, Pci *to) {
    CHECK(one);
    memset(to, 0, sizeof *to);
    return copy(to->bus_id, sizeof to->bus_id, find("g%d.pci", one->gpu));
}

/* `g0.process` is the id of a process that computes there. */
typedef struct { unsigned pid; unsigned long long memory; unsigned instance, compute_instance; } Process;
int nvmlDeviceGetComputeRunningProcesses_v3(Device *one, unsigned *count, Process *to) {
    CHECK(one);
    double pid = of_gpu(one->gpu, "process", 0);
    unsigned room = *count;
    *count = pid > 0;
    if (!*count) return OK;
    if (!room || !to) return 7;
    to[0] = (Process){(unsigned)pid, (unsigned long long)of_gpu(one->gpu, "memory_used_bytes", 0), ~0u, ~0u};
    return OK;
}

typedef struct { unsigned gpu, memory; } Utilisation;
int nvmlDeviceGetUtilizationRates(Device *one, Utilisation *to) {
    WHOLE(one);
    if (of_gpu(one->gpu, "mig", 0)) return UNSUPPORTED;
    double area, load_now = gpu_load(*one, &area);
    *to = (Utilisation){load_now > 0 ? (unsigned)(100 * of_gpu(one->gpu, "busy", 1)) : 0, (unsigned)(60 * load_now)};
    return OK;
}

typedef struct { unsigned version; unsigned long long total, reserved, free, used; } Memory2;
typedef struct { unsigned long long total, free, used; } Memory1;
static Memory2 memory_of(Device *one) {
    char prefix[24] = "";
    if (one->part >= 0) snprintf(prefix, sizeof prefix, "mig%d.", one->part);
    unsigned long long total = number(find("g%d.%smemory_bytes", one->gpu, prefix), 0);
    unsigned long long used = number(find("g%d.%smemory_used_bytes", one->gpu, prefix), 0);
    unsigned long long reserved = number(find("g%d.%smemory_reserved_bytes", one->gpu, prefix), 0);
    return (Memory2){0, total, reserved, total - reserved - used, used};
}
int nvmlDeviceGetMemoryInfo_v2(Device *one, Memory2 *to) {
    CHECK(one);
    unsigned version = to->version;
    if (version != (sizeof(Memory2) | 2u << 24)) return 25;
    *to = memory_of(one);
    to->version = version;
    return OK;
}
int nvmlDeviceGetMemoryInfo(Device *one, Memory1 *to) {
    CHECK(one);
    Memory2 now = memory_of(one);
    *to = (Memory1){now.total, now.free, now.used + now.reserved};
    return OK;
}

static double degrees(Device *one) {
    double area, load_now = gpu_load(*one, &area);
    return of_gpu(one->gpu, "temperature_c", 30 + 40 * load_now);
}
typedef struct { unsigned version, sensor; int degrees; } Temperature;
int nvmlDeviceGetTemperatureV(Device *one, Temperature *to) { WHOLE(one); to->degrees = (int)degrees(one); return OK; }
int nvmlDeviceGetTemperature(Device *one, unsigned sensor, unsigned *to) { (void)sensor; WHOLE(one); *to = (unsigned)degrees(one); return OK; }
int nvmlDeviceGetTemperatureThreshold(Device *one, unsigned kind, unsigned *to) {
    WHOLE(one);
    if (kind > 1) return UNSUPPORTED;
    *to = (unsigned)of_gpu(one->gpu, kind ? "slowdown_c" : "shutdown_c", 90);
    return OK;
}
typedef struct { unsigned version; int degrees; } Margin;
int nvmlDeviceGetMarginTemperature(Device *one, Margin *to) {
    WHOLE(one);
    if (!of_gpu(one->gpu, "margin", 0)) return UNSUPPORTED;
    to->degrees = (int)(of_gpu(one->gpu, "slowdown_c", 90) - degrees(one));
    return OK;
}

static double watts(Device *one, double load_now) {
    double idle = of_gpu(one->gpu, "idle_w", 70), most = of_gpu(one->gpu, "limit_w", 700);
    return idle + (most - idle) * load_now;
}
int nvmlDeviceGetPowerUsage(Device *one, unsigned *to) { WHOLE(one); double area; *to = (unsigned)(1000 * watts(one, gpu_load(*one, &area))); return OK; }
int nvmlDeviceGetEnforcedPowerLimit(Device *one, unsigned *to) { WHOLE(one); *to = (unsigned)(1000 * of_gpu(one->gpu, "limit_w", 700)); return OK; }
int nvmlDeviceGetClockInfo(Device *one, unsigned kind, unsigned *to) {
    WHOLE(one);
    double area, load_now = gpu_load(*one, &area);
    double slow = of_gpu(one->gpu, "throttle", 0) ? 0.5 : 1;
    *to = (unsigned)(kind == 2 ? of_gpu(one->gpu, "memory_mhz", 2619) : load_now > 0 ? slow * of_gpu(one->gpu, "sm_mhz", 1980) : 345);
    return OK;
}
int nvmlDeviceGetMaxClockInfo(Device *one, unsigned kind, unsigned *to) {
    WHOLE(one);
    *to = (unsigned)(kind == 2 ? of_gpu(one->gpu, "memory_mhz", 2619) : of_gpu(one->gpu, "sm_mhz", 1980));
    return OK;
}
int nvmlDeviceGetCurrentClocksEventReasons(Device *one, unsigned long long *to) {
    WHOLE(one);
    double area, load_now = gpu_load(*one, &area);
    *to = (unsigned long long)of_gpu(one->gpu, "throttle", 0) | (load_now > 0 ? 0 : 1);
    return OK;
}

typedef union { double real; unsigned natural; unsigned long long large; } Value;
typedef struct { uint32_t field, scope; int64_t at, latency; uint32_t kind, code; Value value; } Field;
int nvmlDeviceGetFieldValues(Device *one, int fields, Field *to) {
    WHOLE(one);
    for (int i = 0; i < fields; i++) {
        Field *field = &to[i];
        const char *given = find("g%d.field.%u", one->gpu, field->field);
        field->code = (uint32_t)number(find("g%d.return.field.%u", one->gpu, field->field), given || field->field == 83 ? OK : UNSUPPORTED);
        if (field->code) continue;
        double area;
        gpu_load(*one, &area);
        field->kind = 3;
        field->value.large = given ? strtoull(given, NULL, 10)
            : (unsigned long long)(1000 * (watts(one, 0) * elapsed() + (watts(one, 1) - watts(one, 0)) * area));
    }
    return OK;
}

typedef struct { Device *device; unsigned long long kind, data; unsigned instance, compute; } Event;
int nvmlEventSetCreate(EventSet **to) {
    CHECK(NULL);
    for (int i = 0; i < EVENT_SETS; i++)
        if (!sets[i].used) {
            memset(&sets[i], 0, sizeof sets[i]);
            sets[i].used = 1;
            sets[i].seen = (long)number(find("xids.count"), 0);
            *to = &sets[i];
            return OK;
        }
    return 20;
}
int nvmlDeviceRegisterEvents(Device *one, unsigned long long kinds, EventSet *set) { (void)kinds; CHECK(one); set->listens[one->gpu] = 1; return OK; }
int nvmlEventSetWait_v2(EventSet *set, Event *to, unsigned timeout) {
    (void)timeout;
    CHECK(NULL);
    while (set->seen < number(find("xids.count"), 0)) {
        unsigned gpu = 0, xid = 0;
        const char *given = find("xids.%ld", set->seen++);
        if (!given || sscanf(given, "%u:%u", &gpu, &xid) != 2 || gpu >= MOST_GPUS || !set->listens[gpu]) continue;
        *to = (Event){&devices[gpu][0], 8, xid, ~0u, ~0u};
        return OK;
    }
    return TIMED_OUT;
}
int nvmlEventSetFree(EventSet *set) { set->used = 0; return OK; }

typedef struct { unsigned version, supported; } GpmSupport;
typedef struct { unsigned id, code; double value; const char *names[3]; } GpmMetric;
typedef struct { unsigned version, metrics; Sample *first, *second; GpmMetric metric[]; } GpmMetrics;
static int held;
int nvmlGpmQueryDeviceSupport(Device *one, GpmSupport *to) { CHECK(one); to->supported = (unsigned)of_gpu(one->gpu, "gpm", 0); return OK; }
int nvmlGpmSampleAlloc(Sample **to) {
    CHECK(NULL);
    if (held >= GPM_SAMPLES) return 20;
    held++;
    *to = calloc(1, sizeof **to);
    return OK;
}
int nvmlGpmSampleFree(Sample *sample) { held--; free(sample); return OK; }
static int gpm_take(Device one, Sample *to) {
    if (!of_gpu(one.gpu, "gpm", 0)) return UNSUPPORTED;
    to->value[0] = elapsed();
    gpu_load(one, &to->value[1]);
    to->taken = 1;
    return OK;
}
int nvmlGpmSampleGet(Device *one, Sample *to) { CHECK(one); return of_gpu(one->gpu, "mig", 0) ? UNSUPPORTED : gpm_take(*one, to); }
int nvmlGpmMigSampleGet(Device *one, unsigned instance, Sample *to) {
    CHECK(one);
    for (int part = 0; part < of_gpu(one->gpu, "mig.count", 0); part++)
        if (instance == number(find("g%d.mig%d.instance", one->gpu, part), -1)) return gpm_take((Device){one->gpu, part}, to);
    return NOT_FOUND;
}
int nvmlGpmMetricsGet(GpmMetrics *to) {
    CHECK(NULL);
    if (to->version != 1 || !to->first->taken || !to->second->taken) return INVALID;
    double span = to->second->value[0] - to->first->value[0];
    double load_between = span > 0 ? (to->second->value[1] - to->first->value[1]) / span : 0;
    for (unsigned i = 0; i < to->metrics; i++) {
        GpmMetric *metric = &to->metric[i];
        double share = metric->id == 1 ? (load_between > 0) : number(find("gpm.%u", metric->id), 0) * load_between;
        metric->code = span < 0.1 ? 27 : metric->id == 1 || find("gpm.%u", metric->id) ? OK : UNSUPPORTED;
        metric->value = 100 * share;
    }
    return OK;
}

int nvmlDeviceGetMigMode(Device *one, unsigned *now, unsigned *pending) {
    WHOLE(one);
    if (!of_gpu(one->gpu, "mig.able", 0)) return UNSUPPORTED;
    *now = *pending = (unsigned)of_gpu(one->gpu, "mig", 0);
    return OK;
}
int nvmlDeviceGetCudaComputeCapability(Device *one, int *major, int *minor) {
    WHOLE(one);
    int both = (int)of_gpu(one->gpu, "capability", 0);
    if (!both) return UNSUPPORTED;
    *major = both / 10;
    *minor = both % 10;
    return OK;
}
int nvmlDeviceGetMaxMigDeviceCount(Device *one, unsigned *to) { WHOLE(one); *to = of_gpu(one->gpu, "mig.able", 0) ? 7 : 0; return OK; }
int nvmlDeviceGetMigDeviceHandleByIndex(Device *one, unsigned index, Device **to) {
    WHOLE(one);
    if (index >= MOST_PARTS || index >= of_gpu(one->gpu, "mig.count", 0)) return NOT_FOUND;
    devices[one->gpu][index + 1] = (Device){one->gpu, (int)index};
    *to = &devices[one->gpu][index + 1];
    return OK;
}
int nvmlDeviceGetGpuInstanceId(Device *one, unsigned *to) {
    CHECK(one);
    if (one->part < 0) return UNSUPPORTED;
    *to = (unsigned)number(find("g%d.mig%d.instance", one->gpu, one->part), 0);
    return OK;
}
typedef struct { unsigned processors, copies, decoders, encoders, jpegs, flows, slices, compute; unsigned long long megabytes; } Attributes;
int nvmlDeviceGetAttributes_v2(Device *one, Attributes *to) {
    CHECK(one);
    if (one->part < 0) return UNSUPPORTED;
    memset(to, 0, sizeof *to);
    to->slices = to->compute = (unsigned)number(find("g%d.mig%d.slices", one->gpu, one->part), 1);
    return OK;
}
