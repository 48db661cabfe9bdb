package org.lakebed.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.ObjectMapper;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStream;
import java.io.InputStreamReader;
import java.io.OutputStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.DirectoryStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.concurrent.atomic.AtomicLong;

/**
 * The Python process that answers this JVM's requests: one for each interpreter, shared by all catalogs and sessions.
 *
 * <p>The first request starts it, and the first one after its end starts it again. It ends with the JVM, whose end closes
 * its standard input. Requests run concurrently; replies are matched by their ids.
 */
final class Bridge {
  static final ObjectMapper JSON = new ObjectMapper();
  private static final long START_SECONDS_MAX = 120;
  private static final Map<String, Bridge> BRIDGES = new ConcurrentHashMap<>();

  private final String python;
  private final AtomicLong ids = new AtomicLong();
  private Link link;

  private Bridge(String python) {
    this.python = python;
  }

  static Bridge of(String python) {
    return BRIDGES.computeIfAbsent(python, Bridge::new);
  }

  /**
   * Send a request and wait for the reply. {@code repeats}: the request changes nothing, so that it is sent once more to
   * a new process if the process has ended meanwhile.
   */
  JsonNode ask(String verb, String lake, Object body, long seconds, boolean repeats)
      throws Errors.Refused {
    try {
      return once(verb, lake, body, seconds);
    } catch (Gone gone) {
      if (repeats && gone.hasEnded) {
        try {
          return once(verb, lake, body, seconds);
        } catch (Gone again) {
          gone = again;
        }
      }
      throw repeats
          ? Errors.unavailable(gone.getMessage())
          : Errors.unknown(
              gone.getMessage() + " It is not known whether " + verb
                  + " has changed the table: look at its snapshots, then run the statement again.");
    }
  }

  private JsonNode once(String verb, String lake, Object body, long seconds) throws Gone, Errors.Refused {
    Link current = connected();
    long id = ids.incrementAndGet();
    ObjectNode request = JSON.createObjectNode().put("id", id).put("verb", verb).put("lake", lake);
    request.set("body", JSON.valueToTree(body));
    JsonNode reply = current.exchange(id, request.toString(), verb, seconds);
    if (reply.has("error")) {
      JsonNode error = reply.get("error");
      throw Errors.of(error.get("kind").asText(), error.get("group").asText(), error.get("message").asText());
    }
    return reply.get("ok");
  }

  private synchronized Link connected() throws Gone {
    if (link == null || !link.isAlive()) {
      link = Link.start(python);
    }
    return link;
  }

  /** There is no reply: the process has ended, or the wait for the reply was given up. */
  private static final class Gone extends Exception {
    private final boolean hasEnded;

    Gone(String message, boolean hasEnded) {
      super(message);
      this.hasEnded = hasEnded;
    }
  }

  /** One running process. */
  private static final class Link {
    private final Process process;
    private final BlockingQueue<byte[]> outgoing = new LinkedBlockingQueue<>();
    private final Map<Long, CompletableFuture<JsonNode>> pending = new ConcurrentHashMap<>();
    private volatile boolean ended;
    private volatile Path folder;

    private Link(Process process) {
      this.process = process;
    }

    static Link start(String python) throws Gone {
      Process process = Python.start(python, "lakebed.spark.bridge");
      Link link = new Link(process);
      CompletableFuture<JsonNode> greeting = new CompletableFuture<>();
      daemon("lakebed-bridge-reader", () -> link.read(process.getInputStream(), greeting));
      daemon("lakebed-bridge-writer", () -> link.write(process.getOutputStream()));
      boolean greeted = false;
      try {
        Python.checkVersion(greeting.get(START_SECONDS_MAX, TimeUnit.SECONDS).path("lakebed").asText(), python);
        greeted = true;
      } catch (ExecutionException | TimeoutException | InterruptedException e) {
        throw Errors.mistake(
            "The Python process of lakebed (" + python + " -m lakebed.spark.bridge) did not start; its output is in"
                + " Spark's log. Let spark.sql.catalog.NAME.python name a Python with lakebed[spark].");
      } finally {
        if (!greeted) {
          link.end();
        }
      }
      return link;
    }

    boolean isAlive() {
      return !ended && process.isAlive();
    }

    JsonNode exchange(long id, String request, String verb, long seconds) throws Gone {
      CompletableFuture<JsonNode> reply = new CompletableFuture<>();
      pending.put(id, reply);
      outgoing.add((request + "\n").getBytes(StandardCharsets.UTF_8));
      if (ended) {
        failAll();
      }
      try {
        return reply.get(seconds, TimeUnit.SECONDS);
      } catch (TimeoutException e) {
        end();
        throw new Gone(
            "lakebed's Python process did not answer " + verb + " within " + seconds + " s and was ended; it starts again"
                + " with the next statement. Let spark.sql.catalog.NAME.timeout be longer if the store is slow.",
            false);
      } catch (InterruptedException e) {
        Thread.currentThread().interrupt();
        throw new Gone("The statement was interrupted while it waited for " + verb + ".", false);
      } catch (ExecutionException e) {
        throw new Gone("lakebed's Python process ended while it ran " + verb + ".", true);
      } finally {
        pending.remove(id);
      }
    }

    private void read(InputStream in, CompletableFuture<JsonNode> greeting) {
      try (BufferedReader lines = new BufferedReader(new InputStreamReader(in, StandardCharsets.UTF_8))) {
        String first = lines.readLine();
        if (first != null) {
          JsonNode hello = JSON.readTree(first);
          if (hello.hasNonNull("folder")) {
            folder = Path.of(hello.get("folder").asText());
          }
          greeting.complete(hello);
        }
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
          JsonNode reply = JSON.readTree(line);
          CompletableFuture<JsonNode> waiting = pending.get(reply.path("id").asLong());
          if (waiting != null) {
            waiting.complete(reply);
          }
        }
      } catch (IOException e) {
        // The process has ended; the waiting requests are notified below.
      } finally {
        greeting.completeExceptionally(new IOException("ended"));
        end();
      }
    }

    private void write(OutputStream out) {
      try {
        while (isAlive()) {
          byte[] line = outgoing.poll(1, TimeUnit.SECONDS);
          if (line != null) {
            out.write(line);
            out.flush();
          }
        }
      } catch (IOException | InterruptedException e) {
        end();
      }
    }

    private void end() {
      ended = true;
      process.destroyForcibly().onExit().thenRun(this::removeFolder);
      failAll();
    }

    /** Remove the folder of Arrow files of a killed process. A process whose input ends removes it itself. */
    private void removeFolder() {
      if (folder == null) {
        return;
      }
      try (DirectoryStream<Path> files = Files.newDirectoryStream(folder, "*.arrow")) {
        for (Path file : files) {
          Files.deleteIfExists(file);
        }
        Files.deleteIfExists(folder);
      } catch (IOException e) {
        // The process has removed it.
      }
    }

    private void failAll() {
      for (CompletableFuture<JsonNode> reply : pending.values()) {
        reply.completeExceptionally(new IOException("ended"));
      }
    }

    private static void daemon(String name, Runnable run) {
      Thread thread = new Thread(run, name);
      thread.setDaemon(true);
      thread.start();
    }
  }
}
