/* Intel AMX in software: execute tile instructions in the handler of SIGILL.
 *
 * Follows the pseudocode of Intel's Software Developer's Manual (only palette 1: 8 tiles of up to
 * 16 rows of 64 bytes). Tiles are thread-local, as on the CPU. Where the CPU would raise #UD or #GP,
 * the first reason is recorded and the instruction is skipped, or the process aborts.
 */

#define _GNU_SOURCE
#include <immintrin.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <ucontext.h>

enum {
    LDTILECFG, STTILECFG, TILELOADD, TILELOADDT1, TILESTORED, TILEZERO, TILERELEASE,
    TDPBSSD, TDPBSUD, TDPBUSD, TDPBUUD, TDPBF16PS, MNEMONICS
};

static const char *const names[MNEMONICS] = {
    "ldtilecfg", "sttilecfg", "tileloadd", "tileloaddt1", "tilestored", "tilezero", "tilerelease",
    "tdpbssd", "tdpbsud", "tdpbusd", "tdpbuud", "tdpbf16ps",
};

enum { TILES = 8, ROWS = 16, ROW_BYTES = 64, CONFIG_BYTES = 64 };

typedef struct {
    uint8_t palette; /* 0 while not configured */
    uint8_t start_row;
    uint8_t rows[TILES];
    uint16_t colsb[TILES];
    uint8_t data[TILES][ROWS][ROW_BYTES] __attribute__((aligned(64)));
} Tiles;

static __thread Tiles tiles;
static uint64_t counts[MNEMONICS];
static int abort_on_error;
static int failed;
static char first_error[256];
static int installed;
static struct sigaction before;

/* One decoded instruction. */
typedef struct {
    int mnemonic;
    int reg, rm, vvvv; /* tile operands */
    uint64_t base;     /* base address of the memory operand, with the displacement */
    int64_t stride;    /* the scaled index register */
    int length;
} Instruction;

static void fail(const Instruction *in, const char *why)
{
    char text[256];
    snprintf(text, sizeof text, "%s: %s", names[in->mnemonic], why);
    if (abort_on_error) {
        fprintf(stderr, "emulated AMX: %s\n", text);
        abort();
    }
    if (!__atomic_exchange_n(&failed, 1, __ATOMIC_ACQ_REL))
        memcpy(first_error, text, sizeof text);
}

/* ---- decoding ---- */

static uint64_t read_register(const ucontext_t *context, int number)
{
    static const int place[16] = {
        REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
        REG_R8, REG_R9, REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15,
    };
    return (uint64_t)context->uc_mcontext.gregs[place[number]];
}

static int32_t read_int32(const uint8_t *at)
{
    int32_t value;
    memcpy(&value, at, sizeof value);
    return value;
}

/* Mnemonic by opcode, prefix (0 none, 1 66, 2 F3, 3 F2) and ModRM; -1 for none. */
static int find_mnemonic(int opcode, int prefix, int mod, int reg, int rm)
{
    static const int loads[4] = {-1, TILELOADDT1, TILESTORED, TILELOADD};
    static const int bytes[4] = {TDPBUUD, TDPBUSD, TDPBSUD, TDPBSSD};
    switch (opcode) {
    case 0x49:
        if (mod != 3)
            return reg != 0 ? -1 : prefix == 0 ? LDTILECFG : prefix == 1 ? STTILECFG : -1;
        if (prefix == 0)
            return reg == 0 && rm == 0 ? TILERELEASE : -1;
        return prefix == 3 && rm == 0 ? TILEZERO : -1;
    case 0x4B:
        return mod != 3 && rm == 4 ? loads[prefix] : -1;
    case 0x5C:
        return mod == 3 && prefix == 2 ? TDPBF16PS : -1;
    case 0x5E:
        return mod == 3 ? bytes[prefix] : -1;
    default:
        return -1;
    }
}

/* Decodes the instruction at the instruction pointer; returns 0 if it is no AMX instruction. */
static int decode(const ucontext_t *context, Instruction *in)
{
    const uint8_t *start = (const uint8_t *)context->uc_mcontext.gregs[REG_RIP];
    if (start[0] != 0xC4) /* the short form of VEX has no opcode map 2 */
        return 0;
    int extend_r = !(start[1] & 0x80), extend_x = !(start[1] & 0x40), extend_b = !(start[1] & 0x20);
    if ((start[1] & 0x1F) != 2 || (start[2] & 0x84)) /* map 0F38, W0, 128 bits */
        return 0;
    in->vvvv = ~(start[2] >> 3) & 15;
    int mod = start[4] >> 6, reg = start[4] >> 3 & 7, rm = start[4] & 7;
    in->mnemonic = find_mnemonic(start[3], start[2] & 3, mod, reg, rm);
    if (in->mnemonic < 0)
        return 0;
    in->reg = reg;
    in->rm = rm;
    int product = in->mnemonic >= TDPBSSD;
    if (extend_r || (product ? in->vvvv > 7 || extend_b : in->vvvv != 0))
        return 0;
    const uint8_t *next = start + 5;
    if (mod != 3) {
        int base = rm, index = 4, scale = 0;
        if (rm == 4) {
            base = *next & 7;
            index = *next >> 3 & 7;
            scale = *next >> 6;
            next++;
        }
        int none = mod == 0 && base == 5; /* displacement without base, or from the next instruction */
        index |= extend_x << 3;
        in->base = none ? 0 : read_register(context, base | extend_b << 3);
        in->stride = index == 4 ? 0 : (int64_t)(read_register(context, index) << scale);
        if (mod == 1) {
            in->base += (int64_t)(int8_t)*next++;
        } else if (mod == 2 || none) {
            in->base += (int64_t)read_int32(next);
            next += 4;
        }
        if (none && rm != 4)
            in->base += (uint64_t)next;
    }
    in->length = (int)(next - start);
    return 1;
}

/* ---- execution ---- */

static void load_configuration(const Instruction *in)
{
    uint8_t bytes[CONFIG_BYTES];
    memcpy(bytes, (const void *)(in->base + in->stride), sizeof bytes);
    if (bytes[0] > 1) {
        fail(in, "palette must be 0 or 1");
        return;
    }
    uint16_t colsb[TILES];
    memcpy(colsb, bytes + 16, sizeof colsb);
    const uint8_t *rows = bytes + 48;
    for (int i = 2; bytes[0] && i < CONFIG_BYTES; i++) {
        if ((i < 16 || (i >= 32 && i < 48) || i >= 56) && bytes[i]) {
            fail(in, "reserved bytes of the configuration must be 0");
            return;
        }
    }
    for (int t = 0; bytes[0] && t < TILES; t++) {
        if (colsb[t] > ROW_BYTES || rows[t] > ROWS || !colsb[t] != !rows[t]) {
            fail(in, "a tile must have up to 16 rows of up to 64 bytes, or neither");
            return;
        }
    }
    memset(&tiles, 0, sizeof tiles);
    if (bytes[0]) {
        tiles.palette = bytes[0];
        tiles.start_row = bytes[1];
        memcpy(tiles.colsb, colsb, sizeof colsb);
        memcpy(tiles.rows, rows, sizeof tiles.rows);
    }
}

static void store_configuration(const Instruction *in)
{
    uint8_t bytes[CONFIG_BYTES] = {0};
    if (tiles.palette) {
        bytes[0] = tiles.palette;
        bytes[1] = tiles.start_row;
        memcpy(bytes + 16, tiles.colsb, sizeof tiles.colsb);
        memcpy(bytes + 48, tiles.rows, sizeof tiles.rows);
    }
    memcpy((void *)(in->base + in->stride), bytes, sizeof bytes);
}

/* Returns whether tile t may be used; records a fault otherwise. */
static int usable(const Instruction *in, int t)
{
    if (!tiles.palette) {
        fail(in, "tiles must be configured first");
        return 0;
    }
    if (!tiles.colsb[t]) {
        fail(in, "the configuration must give the tile rows and columns");
        return 0;
    }
    return 1;
}

static void load_tile(const Instruction *in)
{
    int t = in->reg;
    if (!usable(in, t))
        return;
    int start = tiles.start_row;
    for (int row = 0; row < ROWS; row++) {
        if (row < start)
            continue;
        memset(tiles.data[t][row], 0, ROW_BYTES);
        if (row < tiles.rows[t])
            memcpy(tiles.data[t][row], (const void *)(in->base + row * in->stride), tiles.colsb[t]);
    }
    tiles.start_row = 0;
}

static void store_tile(const Instruction *in)
{
    int t = in->reg;
    if (!usable(in, t))
        return;
    for (int row = tiles.start_row; row < tiles.rows[t]; row++)
        memcpy((void *)(in->base + row * in->stride), tiles.data[t][row], tiles.colsb[t]);
    tiles.start_row = 0;
}

static void multiply_bytes(int to, int left, int right, int left_signed, int right_signed)
{
    int steps = tiles.colsb[left] / 4, columns = tiles.colsb[to] / 4;
    for (int row = 0; row < tiles.rows[to]; row++) {
        uint32_t acc[ROW_BYTES / 4];
        memcpy(acc, tiles.data[to][row], ROW_BYTES);
        for (int k = 0; k < steps; k++) {
            const uint8_t *a = tiles.data[left][row] + 4 * k;
            const uint8_t *b = tiles.data[right][k];
            int32_t word[4];
            for (int d = 0; d < 4; d++)
                word[d] = left_signed ? (int8_t)a[d] : a[d];
            for (int n = 0; n < columns; n++)
                for (int d = 0; d < 4; d++) {
                    int32_t value = right_signed ? (int8_t)b[4 * n + d] : b[4 * n + d];
                    acc[n] += (uint32_t)(word[d] * value); /* wraps around */
                }
        }
        memset(tiles.data[to][row], 0, ROW_BYTES);
        memcpy(tiles.data[to][row], acc, (size_t)columns * 4);
    }
}

static float widen(uint16_t bits)
{
    uint32_t word = (uint32_t)bits << 16;
    float value;
    memcpy(&value, &word, sizeof value);
    return value;
}

/* Even and odd K accumulate separately, and are added to the tile at the end. */
static void multiply_bfloat16(int to, int left, int right)
{
    int steps = tiles.colsb[left] / 4, columns = tiles.colsb[to] / 4;
    unsigned saved = _mm_getcsr();
    _mm_setcsr(0x1F80 | 0x8040); /* no exceptions, round to nearest even, denormals flushed to zero */
    for (int row = 0; row < tiles.rows[to]; row++) {
        float even[ROW_BYTES / 4] = {0}, odd[ROW_BYTES / 4] = {0}, acc[ROW_BYTES / 4] = {0};
        for (int k = 0; k < steps; k++) {
            uint16_t a[2], b[ROW_BYTES / 2];
            memcpy(a, tiles.data[left][row] + 4 * k, sizeof a);
            memcpy(b, tiles.data[right][k], sizeof b);
            for (int n = 0; n < columns; n++) {
                even[n] = __builtin_fmaf(widen(a[0]), widen(b[2 * n]), even[n]);
                odd[n] = __builtin_fmaf(widen(a[1]), widen(b[2 * n + 1]), odd[n]);
            }
        }
        memcpy(acc, tiles.data[to][row], (size_t)columns * 4);
        for (int n = 0; n < columns; n++)
            acc[n] += even[n] + odd[n];
        memset(tiles.data[to][row], 0, ROW_BYTES);
        memcpy(tiles.data[to][row], acc, (size_t)columns * 4);
    }
    _mm_setcsr(saved);
}

static void multiply(const Instruction *in)
{
    int to = in->reg, left = in->rm, right = in->vvvv, kind = in->mnemonic;
    if (!usable(in, to) || !usable(in, left) || !usable(in, right))
        return;
    if (to == left || to == right || left == right) {
        fail(in, "the three tiles must differ");
        return;
    }
    if (tiles.colsb[to] % 4 || tiles.colsb[left] % 4 || tiles.colsb[right] % 4) {
        fail(in, "bytes of a row must be a multiple of 4");
        return;
    }
    if (tiles.rows[to] != tiles.rows[left] || tiles.colsb[left] / 4 != tiles.rows[right] ||
        tiles.colsb[to] != tiles.colsb[right]) {
        fail(in, "shapes of the three tiles must fit");
        return;
    }
    if (kind == TDPBF16PS)
        multiply_bfloat16(to, left, right);
    else
        multiply_bytes(to, left, right, kind == TDPBSSD || kind == TDPBSUD,
                       kind == TDPBSSD || kind == TDPBUSD);
    for (int row = tiles.rows[to]; row < ROWS; row++)
        memset(tiles.data[to][row], 0, ROW_BYTES);
    tiles.start_row = 0;
}

static void execute(const Instruction *in)
{
    __atomic_add_fetch(&counts[in->mnemonic], 1, __ATOMIC_RELAXED);
    switch (in->mnemonic) {
    case LDTILECFG:
        load_configuration(in);
        break;
    case STTILECFG:
        store_configuration(in);
        break;
    case TILELOADD:
    case TILELOADDT1:
        load_tile(in);
        break;
    case TILESTORED:
        store_tile(in);
        break;
    case TILEZERO:
        if (usable(in, in->reg)) {
            memset(tiles.data[in->reg], 0, sizeof tiles.data[0]);
            tiles.start_row = 0;
        }
        break;
    case TILERELEASE:
        memset(&tiles, 0, sizeof tiles);
        break;
    default:
        multiply(in);
    }
}

static void on_illegal_instruction(int number, siginfo_t *info, void *opaque)
{
    ucontext_t *context = opaque;
    Instruction in;
    memset(&in, 0, sizeof in);
    if (decode(context, &in)) {
        execute(&in);
        context->uc_mcontext.gregs[REG_RIP] += in.length;
    } else if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, info, opaque);
    } else if (before.sa_handler != SIG_DFL && before.sa_handler != SIG_IGN) {
        before.sa_handler(number);
    } else {
        sigaction(SIGILL, &before, NULL); /* the instruction runs again, and the signal kills the process */
    }
}

/* ---- for Python ---- */

int amx_install(int aborts)
{
    struct sigaction action;
    abort_on_error = aborts;
    if (installed)
        return 0;
    memset(&action, 0, sizeof action);
    sigemptyset(&action.sa_mask);
    action.sa_sigaction = on_illegal_instruction;
    action.sa_flags = SA_SIGINFO | SA_NODEFER;
    if (sigaction(SIGILL, &action, &before))
        return -1;
    installed = 1;
    return 0;
}

int amx_uninstall(void)
{
    if (!installed)
        return 0;
    installed = 0;
    return sigaction(SIGILL, &before, NULL);
}

void amx_reset(void)
{
    memset(&tiles, 0, sizeof tiles); /* tiles of this thread */
    memset(counts, 0, sizeof counts);
    memset(first_error, 0, sizeof first_error);
    __atomic_store_n(&failed, 0, __ATOMIC_RELEASE);
}

int amx_mnemonics(void) { return MNEMONICS; }
const char *amx_mnemonic(int index) { return names[index]; }
uint64_t amx_count(int index) { return __atomic_load_n(&counts[index], __ATOMIC_RELAXED); }
const char *amx_error(void) { return first_error; }
