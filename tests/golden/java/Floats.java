import java.io.PrintWriter;
import java.util.Random;

/** Random doubles and floats, as bits, with their texts: args are a seed, a count and the file to write. */
public class Floats {
    public static void main(String[] args) throws Exception {
        Random random = new Random(Long.parseLong(args[0]));
        try (PrintWriter out = new PrintWriter(args[2])) {
            for (int i = 0; i < Integer.parseInt(args[1]); i++) {
                double d;
                float f;
                switch (i % 6) {
                    case 0:
                        d = Double.longBitsToDouble(random.nextLong());
                        f = Float.intBitsToFloat(random.nextInt());
                        break;
                    case 1:
                        d = random.nextInt(100000) / Math.pow(10, random.nextInt(20) - 8);
                        f = (float) d;
                        break;
                    case 2:
                        d = Math.scalb(1.0, random.nextInt(2098) - 1074);
                        f = Math.scalb(1f, random.nextInt(277) - 149);
                        break;
                    case 3:
                        d = (double) random.nextLong();
                        f = (float) random.nextInt();
                        break;
                    case 4:
                        d = random.nextInt(1000) * Math.pow(10, random.nextInt(40) - 10);
                        f = (float) d;
                        break;
                    default:
                        d = Double.longBitsToDouble(random.nextLong() >>> (12 + random.nextInt(50)));
                        f = Float.intBitsToFloat(random.nextInt() >>> (9 + random.nextInt(20)));
                }
                out.println(Double.doubleToRawLongBits(d) + " " + d + " " + Float.floatToRawIntBits(f) + " " + f);
            }
        }
    }
}
