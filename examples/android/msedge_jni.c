/* The native part of msedge.Model: a model that is linked into this library. */
#define _POSIX_C_SOURCE 200809L
#include <jni.h>
#include <stdio.h>
#include <stdlib.h>

#include "msedge.h"

enum { INPUT, OUTPUT, STATE, SIGNATURE };

struct holder {
  struct msedge model;
  void *memory;
};

static void throw(JNIEnv *env, const char *kind, const char *what, const char *where) {
  char text[512];
  snprintf(text, sizeof text, "%s%s%s", where, *where ? ": " : "", what);
  jclass found = (*env)->FindClass(env, kind);
  if (found) (*env)->ThrowNew(env, found, text);
}

static struct msedge *model_of(jlong handle) {
  return &((struct holder *)(intptr_t)handle)->model;
}

static void check(JNIEnv *env, const struct msedge *model, enum msedge_status status) {
  int told = status == MSEDGE_INDEX || status == MSEDGE_DIFFERS;
  if (status) throw(env, "java/lang/IllegalStateException", msedge_text(status), told ? model->where : "");
}

/* A signature's or the state's ports, and their number; none for what is not there. */
static const struct msedge_port *ports_of(const struct msedge *model, jint signature, jint side, uint32_t *count) {
  *count = 0;
  if (side == STATE) {
    *count = model->state_count;
    return model->states;
  }
  if (signature < 0 || (uint32_t)signature >= model->signature_count) return NULL;
  const struct msedge_signature *found = &model->signatures[signature];
  *count = side == INPUT ? found->input_count : found->output_count;
  return side == INPUT ? found->inputs : found->outputs;
}

static const struct msedge_port *port_of(JNIEnv *env, jlong handle, jint signature, jint side, jint number) {
  uint32_t count;
  const struct msedge_port *ports = ports_of(model_of(handle), signature, side, &count);
  if (number >= 0 && (uint32_t)number < count) return &ports[number];
  throw(env, "java/lang/IndexOutOfBoundsException", "the model has no such input, output or state", "");
  return NULL;
}

JNIEXPORT jlong JNICALL Java_msedge_Model_open(JNIEnv *env, jclass type) {
  (void)type;
  size_t bytes = (size_t)(msedge_model_end - msedge_model), needed;
  enum msedge_status status = msedge_size(&msedge_kernels, msedge_model, bytes, &needed);
  struct holder *made = status ? NULL : calloc(1, sizeof *made);
  if (status) {
    check(env, NULL, status);
    return 0;
  }
  if (!made || posix_memalign(&made->memory, MSEDGE_ALIGN, needed)) {
    free(made);
    throw(env, "java/lang/OutOfMemoryError", "no memory for the model", "");
    return 0;
  }
  status = msedge_open(&made->model, &msedge_kernels, msedge_model, bytes, made->memory, needed);
  if (status) {
    check(env, NULL, status);
    free(made->memory);
    free(made);
    return 0;
  }
  return (jlong)(intptr_t)made;
}

JNIEXPORT void JNICALL Java_msedge_Model_close(JNIEnv *env, jclass type, jlong handle) {
  (void)env, (void)type;
  struct holder *held = (struct holder *)(intptr_t)handle;
  free(held->memory);
  free(held);
}

JNIEXPORT jint JNICALL Java_msedge_Model_count(JNIEnv *env, jclass type, jlong handle, jint signature, jint side) {
  (void)env, (void)type;
  uint32_t count = model_of(handle)->signature_count;
  if (side != SIGNATURE) ports_of(model_of(handle), signature, side, &count);
  return (jint)count;
}

JNIEXPORT jstring JNICALL Java_msedge_Model_name(JNIEnv *env, jclass type, jlong handle, jint signature, jint side,
                                                 jint number) {
  (void)type;
  const struct msedge *model = model_of(handle);
  if (side == SIGNATURE) {
    if (signature >= 0 && (uint32_t)signature < model->signature_count) {
      return (*env)->NewStringUTF(env, model->signatures[signature].name);
    }
    throw(env, "java/lang/IndexOutOfBoundsException", "the model has no such signature", "");
    return NULL;
  }
  const struct msedge_port *port = port_of(env, handle, signature, side, number);
  return port ? (*env)->NewStringUTF(env, port->name) : NULL;
}

JNIEXPORT jobject JNICALL Java_msedge_Model_port(JNIEnv *env, jclass type, jlong handle, jint signature, jint side,
                                                 jint number) {
  (void)type;
  const struct msedge_port *port = port_of(env, handle, signature, side, number);
  return port ? (*env)->NewDirectByteBuffer(env, port->data, (jlong)port->bytes) : NULL;
}

JNIEXPORT void JNICALL Java_msedge_Model_run(JNIEnv *env, jclass type, jlong handle, jint signature) {
  (void)type;
  check(env, model_of(handle), msedge_run(model_of(handle), (uint32_t)signature));
}

JNIEXPORT void JNICALL Java_msedge_Model_test(JNIEnv *env, jclass type, jlong handle, jint signature) {
  (void)type;
  check(env, model_of(handle), msedge_test(model_of(handle), (uint32_t)signature));
}
