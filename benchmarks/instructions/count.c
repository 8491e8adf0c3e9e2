/* A plugin of qemu: how many instructions ran, and how many of them were of given kinds.

       gcc -shared -fPIC -O2 -o count.so count.c
       qemu-aarch64 -plugin ./count.so,kinds=bfe0fc00:0e809400+bfc0f400:0f80e000 -d plugin …

   kinds: masks and values of instructions of 32 bits, in hexadecimal. At the end it writes "instructions N of kinds M".
   The few declarations stand in for qemu-plugin.h (interface version 1), which no package of Debian's holds. */

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t plugin_id;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
void qemu_plugin_register_vcpu_tb_trans_cb(plugin_id, void (*)(plugin_id, struct qemu_plugin_tb *));
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb *);
struct qemu_plugin_insn *qemu_plugin_tb_get_insn(const struct qemu_plugin_tb *, size_t);
const void *qemu_plugin_insn_data(const struct qemu_plugin_insn *);
size_t qemu_plugin_insn_size(const struct qemu_plugin_insn *);
void qemu_plugin_outs(const char *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *to, uint64_t value);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions, chosen;
static struct { uint32_t mask, value; } kinds[32];
static int count;

static int is_chosen(const struct qemu_plugin_insn *instruction)
{
    uint32_t word;
    if (qemu_plugin_insn_size(instruction) != sizeof word)
        return 0;
    memcpy(&word, qemu_plugin_insn_data(instruction), sizeof word);
    for (int i = 0; i < count; i++)
        if ((word & kinds[i].mask) == kinds[i].value)
            return 1;
    return 0;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block)
{
    size_t length = qemu_plugin_tb_n_insns(block), here = 0;
    (void)id;
    for (size_t i = 0; i < length; i++)
        here += is_chosen(qemu_plugin_tb_get_insn(block, i));
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &instructions, length);
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &chosen, here);
}

static void finished(plugin_id id, void *unused)
{
    (void)id, (void)unused;
    char said[80];
    snprintf(said, sizeof said, "instructions %" PRIu64 " of kinds %" PRIu64 "\n", instructions, chosen);
    qemu_plugin_outs(said);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "kinds=", 6))
            for (char *part = strtok(argv[i] + 6, "+"); part && count < 32; part = strtok(NULL, "+"), count++)
                if (sscanf(part, "%" SCNx32 ":%" SCNx32, &kinds[count].mask, &kinds[count].value) != 2)
                    return -1;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}
