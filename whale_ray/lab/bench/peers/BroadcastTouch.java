import java.lang.management.ManagementFactory;
import java.lang.reflect.Field;

import org.apache.flink.api.common.functions.FlatMapFunction;
import org.apache.flink.api.common.typeinfo.PrimitiveArrayTypeInfo;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.sink.v2.DiscardingSink;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.util.Collector;

/**
 * A source of 100-byte tuples, broadcast to every instance of an operator that reads each of their
 * bytes. Written for a compiler without generics and lambdas (Janino).
 *
 * Arguments: instances, seconds, seconds of warming up, bytes of a tuple, MB of network memory.
 */
public class BroadcastTouch {
    static final sun.misc.Unsafe UNSAFE = unsafe();
    static final long BASE = sun.misc.Unsafe.ARRAY_BYTE_BASE_OFFSET;

    static volatile long tuples;
    static volatile long wallNs;
    static volatile long sourceCpuNs;
    static volatile long cpuNs;

    static sun.misc.Unsafe unsafe() {
        try {
            Field field = sun.misc.Unsafe.class.getDeclaredField("theUnsafe");
            field.setAccessible(true);
            return (sun.misc.Unsafe) field.get(null);
        } catch (Exception error) {
            throw new IllegalStateException(error);
        }
    }

    static long processCpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** Emits as fast as it may; what it emits after the warm-up counts. */
    public static class Tuples implements SourceFunction {
        final long warmNs;
        final long countedNs;
        final int tupleBytes;
        volatile boolean running = true;

        public Tuples(double warmSeconds, double seconds, int tupleBytes) {
            this.warmNs = (long) (warmSeconds * 1e9);
            this.countedNs = (long) (seconds * 1e9);
            this.tupleBytes = tupleBytes;
        }

        public void run(SourceFunction.SourceContext context) throws Exception {
            byte[] tuple = new byte[tupleBytes];
            emit(context, tuple, warmNs);
            long beginNs = System.nanoTime();
            long ownNs = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime();
            long allNs = processCpuNs();
            long count = emit(context, tuple, countedNs);
            wallNs = System.nanoTime() - beginNs;
            sourceCpuNs = ManagementFactory.getThreadMXBean().getCurrentThreadCpuTime() - ownNs;
            cpuNs = processCpuNs() - allNs;
            tuples = count;
        }

        long emit(SourceFunction.SourceContext context, byte[] tuple, long forNs) {
            long endNs = System.nanoTime() + forNs;
            long count = 0;
            while (running && System.nanoTime() < endNs) {
                for (int i = 0; i < 64; i++) {
                    context.collect(tuple);
                }
                count += 64;
            }
            return count;
        }

        public void cancel() {
            running = false;
        }
    }

    /** Reads every byte, eight at a time. */
    public static class Touch implements FlatMapFunction {
        long sum;

        public void flatMap(Object value, Collector out) {
            byte[] tuple = (byte[]) value;
            long total = 0;
            int words = tuple.length & ~7;
            for (int i = 0; i < words; i += 8) {
                total += UNSAFE.getLong(tuple, BASE + i);
            }
            for (int i = words; i < tuple.length; i++) {
                total += tuple[i];
            }
            sum += total;
            if (sum == 0x5741484c45L) {
                out.collect(Long.valueOf(sum)); // never, but nobody can know
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        int instances = Integer.parseInt(arguments[0]);
        double seconds = Double.parseDouble(arguments[1]);
        double warmSeconds = Double.parseDouble(arguments[2]);
        int tupleBytes = Integer.parseInt(arguments[3]);
        Configuration settings = new Configuration();
        settings.setString("taskmanager.numberOfTaskSlots", String.valueOf(instances));
        settings.setString("taskmanager.memory.network.min", arguments[4] + "m");
        settings.setString("taskmanager.memory.network.max", arguments[4] + "m");
        settings.setString("taskmanager.memory.managed.size", "16m");
        settings.setString("pekko.ask.timeout", "120 s");
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(instances, settings);
        environment.getConfig().enableObjectReuse();
        DataStream tuplesIn = environment.addSource(
            new Tuples(warmSeconds, seconds, tupleBytes),
            "tuples",
            PrimitiveArrayTypeInfo.BYTE_PRIMITIVE_ARRAY_TYPE_INFO);
        tuplesIn.broadcast()
            .flatMap(new Touch(), Types.LONG)
            .name("touch")
            .setParallelism(instances)
            .sinkTo(new DiscardingSink())
            .setParallelism(instances);
        environment.execute("broadcast");
        System.out.println(
            "{\"tuples\": " + tuples + ", \"wall_s\": " + wallNs / 1e9
            + ", \"source_cpu_s\": " + sourceCpuNs / 1e9 + ", \"cpu_s\": " + cpuNs / 1e9
            + ", \"note\": \"one tuple a record, all tasks in one JVM; touch in Java\"}");
        System.exit(0);
    }
}
