/* A plugin of qemu: how many instructions ran, and how many of them began with one of the given names.

       gcc -shared -fPIC -O2 -o count.so count.c
       qemu-aarch64 -plugin ./count.so,names=sdot+usdot+sudot …

   It writes "instructions N named M" to stderr at the end. The few declarations stand in for qemu-plugin.h (interface
   version 1), which no package of Debian's holds. */

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
char *qemu_plugin_insn_disas(const struct qemu_plugin_insn *);
void qemu_plugin_register_vcpu_tb_exec_inline(struct qemu_plugin_tb *, int add, void *to, uint64_t value);
void qemu_plugin_register_atexit_cb(plugin_id, void (*)(plugin_id, void *), void *);

__attribute__((visibility("default"))) int qemu_plugin_version = 1;

static uint64_t instructions, named;
static char *names[32];
static int count;

static int is_named(struct qemu_plugin_insn *instruction)
{
    char *text = qemu_plugin_insn_disas(instruction);
    int found = 0;
    for (int i = 0; text && i < count && !found; i++)
        found = !strncmp(text, names[i], strlen(names[i]));
    free(text);
    return found;
}

static void translated(plugin_id id, struct qemu_plugin_tb *block)
{
    size_t length = qemu_plugin_tb_n_insns(block), here = 0;
    (void)id;
    for (size_t i = 0; i < length; i++)
        here += is_named(qemu_plugin_tb_get_insn(block, i));
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &instructions, length);
    qemu_plugin_register_vcpu_tb_exec_inline(block, 0, &named, here);
}

static void finished(plugin_id id, void *unused)
{
    (void)id, (void)unused;
    fprintf(stderr, "instructions %" PRIu64 " named %" PRIu64 "\n", instructions, named);
}

__attribute__((visibility("default"))) int qemu_plugin_install(plugin_id id, const void *info, int argc, char **argv)
{
    (void)info;
    for (int i = 0; i < argc; i++)
        if (!strncmp(argv[i], "names=", 6))
            for (char *part = strtok(argv[i] + 6, "+"); part && count < 32; part = strtok(NULL, "+"))
                names[count++] = part;
    qemu_plugin_register_vcpu_tb_trans_cb(id, translated);
    qemu_plugin_register_atexit_cb(id, finished, NULL);
    return 0;
}
