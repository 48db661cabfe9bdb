import io.trino.server.Server;

/** Starts Trino from its jars: the archive with its own main class is several times their size. */
public final class StartTrino {
    public static void main(String[] arguments) {
        new Server().start(arguments[0]);
    }
}
