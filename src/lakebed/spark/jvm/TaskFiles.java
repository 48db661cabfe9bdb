package org.lakebed.spark;

import java.io.BufferedOutputStream;
import java.io.File;
import java.io.FileOutputStream;
import java.io.IOException;
import java.io.InterruptedIOException;
import java.io.OutputStream;
import java.nio.channels.FileChannel;
import java.nio.file.AccessDeniedException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.StandardOpenOption;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.BulkDelete;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.StreamCapabilities;
import org.apache.parquet.io.PositionOutputStream;

/**
 * The location where a task creates new files, each under its final name.
 *
 * <p>A local file is synced when it is closed, and {@link #makeDurable} syncs the folders. After that, files and folders
 * survive a power loss. In other stores a file exists, durably, once it is closed.
 */
abstract class TaskFiles {
  /** Create a file under a name that only this attempt of a task has. */
  abstract Output create(String path) throws IOException;

  /** Make the names of all closed files durable. */
  abstract void makeDurable() throws IOException;

  /** Delete those files that exist. */
  abstract void delete(List<String> paths) throws IOException;

  /** Return the files below a root. {@code conf}: how to reach a store that is not a local folder. */
  static TaskFiles below(String root, Configuration conf) throws IOException {
    return root.startsWith("file://") ? new Local(root.substring("file://".length())) : new Remote(root, conf);
  }

  /**
   * Whether this process can name every folder below a root. In a locale that is not UTF-8, Java changes characters other
   * than ASCII in local names. {@code named}: folders contain values of partitions.
   */
  static boolean canName(String root, boolean named) {
    boolean isPlain = !named && root.chars().allMatch(c -> c < 128);
    return isPlain || !root.startsWith("file:") || "UTF-8".equalsIgnoreCase(System.getProperty("sun.jnu.encoding"));
  }

  /** A file that is being written. */
  abstract static class Output extends PositionOutputStream {
    private final OutputStream out;
    private long position;
    private boolean closed;
    private boolean dropped;

    Output(OutputStream out) {
      this.out = out;
    }

    @Override
    public long getPos() {
      return position;
    }

    @Override
    public void write(int b) throws IOException {
      if (!dropped) {
        out.write(b);
      }
      position++;
    }

    @Override
    public void write(byte[] bytes, int start, int length) throws IOException {
      if (!dropped) {
        out.write(bytes, start, length);
      }
      position += length;
    }

    @Override
    public void flush() throws IOException {
      out.flush();
    }

    /** Ignore further writes, and let {@link #close} store nothing: the file will be deleted. */
    void drop() {
      dropped = true;
    }

    @Override
    public void close() throws IOException {
      if (closed) {
        return;
      }
      closed = true;
      try (OutputStream ending = out) {
        if (dropped) {
          cancel();
        } else {
          ending.flush();
          sync();
        }
      }
    }

    /** Make the file durable, if closing it does not. */
    void sync() throws IOException {}

    /** Prevent that closing the file creates it, if the store supports this. */
    void cancel() {}
  }

  private static final class Local extends TaskFiles {
    private final Path root;
    private final Set<Path> checked = new HashSet<>();
    private final Set<Path> unsynced = new HashSet<>();

    Local(String root) throws IOException {
      Files.createDirectories(Path.of(root));
      this.root = Path.of(root).toRealPath();
    }

    @Override
    Output create(String path) throws IOException {
      Path place = root.resolve(path);
      Path folder = place.getParent();
      if (checked.add(folder)) {
        Files.createDirectories(folder);
        if (!folder.toRealPath().equals(folder)) {
          throw new IOException(folder + " is reached through a symbolic link: a table does not leave its folder");
        }
      }
      File file = place.toFile();
      if (!file.createNewFile()) {
        throw new IOException(place + " exists already");
      }
      unsynced.add(folder);
      FileOutputStream out = new FileOutputStream(file); // unlike a channel, it survives an interrupt of its thread
      return new Output(new BufferedOutputStream(out, 1 << 16)) {
        @Override
        void sync() throws IOException {
          out.getFD().sync();
        }
      };
    }

    /** Sync the folders of files, then every folder above, up to the parent of the root. */
    @Override
    void makeDurable() throws IOException {
      Set<Path> above = new HashSet<>();
      for (Path folder : unsynced) {
        sync(folder);
        for (Path at = folder.getParent(); at != null && at.startsWith(root); at = at.getParent()) {
          above.add(at);
        }
      }
      for (Path folder : above) {
        sync(folder);
      }
      if (!unsynced.isEmpty() && root.getParent() != null) {
        try {
          sync(root.getParent());
        } catch (AccessDeniedException e) {
          // Another process created it before.
        }
      }
      unsynced.clear();
    }

    private static void sync(Path folder) throws IOException {
      try (FileChannel channel = FileChannel.open(folder, StandardOpenOption.READ)) {
        channel.force(true);
      }
    }

    @Override
    void delete(List<String> paths) throws IOException {
      for (String path : paths) {
        Files.deleteIfExists(root.resolve(path));
      }
    }
  }

  /**
   * A bucket. Hadoop sends many requests to a store whose answers are known here, because names are used once and there
   * are no folders. So a file costs one PUT, and a deletion leaves no marker of an empty folder, which would be no file
   * of a table.
   */
  private static final class Remote extends TaskFiles {
    private static final String WITHOUT_CHECKS = "fs.s3a.create.performance";

    private final org.apache.hadoop.fs.Path root;
    private final FileSystem files;

    Remote(String root, Configuration conf) throws IOException {
      this.root = new org.apache.hadoop.fs.Path(root);
      files = this.root.getFileSystem(conf);
    }

    private org.apache.hadoop.fs.Path place(String path) {
      return new org.apache.hadoop.fs.Path(root + "/" + path);
    }

    @Override
    Output create(String path) throws IOException {
      FSDataOutputStreamBuilder<?, ?> builder = files.createFile(place(path));
      builder.recursive().overwrite(true);
      builder.opt(WITHOUT_CHECKS, true);
      FSDataOutputStream out = builder.build();
      return new Output(out) {
        @Override
        void cancel() {
          if (out.hasCapability(StreamCapabilities.ABORTABLE_STREAM)) {
            out.abort();
          }
        }

        /** Before 3.5, Hadoop returns from an interrupted upload as if it had finished. */
        @Override
        public void close() throws IOException {
          super.close();
          if (Thread.currentThread().isInterrupted()) {
            throw new InterruptedIOException("the upload of " + path + " was interrupted");
          }
        }
      };
    }

    @Override
    void makeDurable() {
      // A file is durable once it is closed.
    }

    @Override
    void delete(List<String> paths) throws IOException {
      if (paths.isEmpty()) {
        return;
      }
      try (BulkDelete deletion = files.createBulkDelete(root)) {
        int size = deletion.pageSize();
        for (int start = 0; start < paths.size(); start += size) {
          List<String> page = paths.subList(start, Math.min(start + size, paths.size()));
          for (Map.Entry<?, String> failed : deletion.bulkDelete(page.stream().map(this::place).toList())) {
            throw new IOException(failed.getKey() + " was not deleted: " + failed.getValue());
          }
        }
      }
    }
  }
}
