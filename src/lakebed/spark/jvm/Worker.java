package org.lakebed.spark;

import java.io.BufferedInputStream;
import java.io.BufferedOutputStream;
import java.io.DataInputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentLinkedDeque;

/**
 * A Python process that reads or writes the rows of one task at a time; see lakebed.spark.worker for its messages.
 *
 * <p>Idle processes are kept for later tasks and end with the JVM. If a task stops early, its process is ended, because
 * what it still sends belongs to that task.
 */
final class Worker {
  private static final Map<String, ConcurrentLinkedDeque<Worker>> IDLE = new ConcurrentHashMap<>();
  private static final int DONE = 0;

  final DataInputStream in;
  final DataOutputStream out;
  private final Process process;
  private final String python;

  private Worker(String python) {
    this.python = python;
    process = Python.start(python, "lakebed.spark.worker");
    in = new DataInputStream(new BufferedInputStream(process.getInputStream(), 1 << 16));
    out = new DataOutputStream(new BufferedOutputStream(process.getOutputStream(), 1 << 16));
  }

  static Worker acquire(String python) {
    ConcurrentLinkedDeque<Worker> idle = IDLE.computeIfAbsent(python, name -> new ConcurrentLinkedDeque<>());
    for (Worker worker = idle.pollFirst(); worker != null; worker = idle.pollFirst()) {
      if (worker.process.isAlive()) {
        return worker;
      }
    }
    return new Worker(python);
  }

  void release() {
    IDLE.get(python).addFirst(this);
  }

  void end() {
    process.destroyForcibly();
  }

  void send(byte[] frame) throws IOException {
    out.writeInt(frame.length);
    out.write(frame);
  }

  /** Read the byte that begins an answer, or follows its rows. */
  void expectDone() throws IOException {
    int status = in.read();
    if (status == DONE) {
      return;
    }
    if (status < 0) {
      throw new IOException("lakebed's worker process ended before its task did; its output is in Spark's log.");
    }
    throw new IOException(new String(frame(), StandardCharsets.UTF_8));
  }

  byte[] frame() throws IOException {
    byte[] frame = new byte[in.readInt()];
    in.readFully(frame);
    return frame;
  }
}
