package org.lakebed.spark;

import java.io.File;
import java.io.IOException;
import java.net.URISyntaxException;
import java.net.URL;
import java.security.CodeSource;
import java.util.jar.JarFile;

/**
 * The classes of this jar, all loaded when the first one of Spark's entries to it is used.
 *
 * <p>Spark's Thrift server runs Hive's sessions, and the first of them that ends closes the class loader of {@code
 * spark.jars}. From then on only classes that were loaded before exist, for every connection.
 */
final class JarClasses {
  static {
    CodeSource source = JarClasses.class.getProtectionDomain().getCodeSource();
    ClassLoader loader = JarClasses.class.getClassLoader();
    if (source != null && source.getLocation() != null && loader != ClassLoader.getSystemClassLoader()) {
      loadAll(source.getLocation(), loader);
      Python.isVersion(""); // whose initialisation reads a file of the jar
    }
  }

  private JarClasses() {}

  /** Load them, if this is the first call. */
  static void load() {}

  private static void loadAll(URL location, ClassLoader loader) {
    try (JarFile jar = new JarFile(new File(location.toURI()))) {
      jar.stream()
          .map(entry -> entry.getName())
          .filter(name -> name.endsWith(".class"))
          .forEach(name -> load(name.substring(0, name.length() - ".class".length()).replace('/', '.'), loader));
    } catch (IOException | URISyntaxException | IllegalArgumentException e) {
      // Without its file every class is loaded where it is used, as usual.
    }
  }

  private static void load(String name, ClassLoader loader) {
    try {
      Class.forName(name, false, loader);
    } catch (ClassNotFoundException | LinkageError e) {
      // The statement that uses the class says what is missing.
    }
  }
}
