package msedge;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;

/**
 * The model that is linked into the library `model_jni` (see README.md).
 *
 * <pre>
 * try (Model model = new Model()) {
 *   model.test();
 *   model.input(0, 0).put(pixels);
 *   model.run(0);
 *   byte first = model.output(0, 0).get(0);
 * }
 * </pre>
 *
 * Signatures, inputs, outputs and states have the order of the built folder's README. Buffers are the model's own memory
 * and in the processor's byte order: nothing is copied. Those of signatures are valid until the next run. They must not
 * be used after {@link #close}. For one thread at a time.
 */
public final class Model implements AutoCloseable {
  static {
    System.loadLibrary("model_jni");
  }

  private static final int INPUT = 0;
  private static final int OUTPUT = 1;
  private static final int STATE = 2;
  private static final int SIGNATURE = 3;
  private long handle;

  /** Checks the model. Throws IllegalStateException for one that is damaged or does not belong to its kernels. */
  public Model() {
    handle = open();
  }

  /** The number of signatures. */
  public int signatures() {
    return count(opened(), 0, SIGNATURE);
  }

  /** The name of a signature. */
  public String signature(int signature) {
    return name(opened(), signature, SIGNATURE, 0);
  }

  /** The memory of an input, from its first to its last byte. */
  public ByteBuffer input(int signature, int number) {
    return port(opened(), signature, INPUT, number).order(ByteOrder.nativeOrder());
  }

  /** The memory of an output. */
  public ByteBuffer output(int signature, int number) {
    return port(opened(), signature, OUTPUT, number).order(ByteOrder.nativeOrder());
  }

  /** The number of states. */
  public int states() {
    return count(opened(), 0, STATE);
  }

  /** The name of a state. */
  public String stateName(int number) {
    return name(opened(), 0, STATE, number);
  }

  /** The memory of a state: keep its bytes to go on training later, and put them back. */
  public ByteBuffer state(int number) {
    return port(opened(), 0, STATE, number).order(ByteOrder.nativeOrder());
  }

  /** Runs a signature. Throws IllegalStateException for an index outside the tensor that it indexes. */
  public void run(int signature) {
    run(opened(), signature);
  }

  /** Runs every signature's sample, and resets the state. Throws IllegalStateException for results that differ. */
  public void test() {
    for (int i = 0; i < signatures(); i++) {
      test(opened(), i);
    }
  }

  @Override
  public void close() {
    if (handle != 0) {
      close(handle);
      handle = 0;
    }
  }

  private long opened() {
    if (handle == 0) {
      throw new IllegalStateException("the model was closed");
    }
    return handle;
  }

  private static native long open();

  private static native void close(long handle);

  private static native int count(long handle, int signature, int side);

  private static native String name(long handle, int signature, int side, int number);

  private static native ByteBuffer port(long handle, int signature, int side, int number);

  private static native void run(long handle, int signature);

  private static native void test(long handle, int signature);
}
