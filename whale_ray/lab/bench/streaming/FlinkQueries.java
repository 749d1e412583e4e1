import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.management.ManagementFactory;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.concurrent.atomic.AtomicLong;

import org.apache.flink.api.common.eventtime.BoundedOutOfOrdernessWatermarks;
import org.apache.flink.api.common.eventtime.TimestampAssigner;
import org.apache.flink.api.common.eventtime.TimestampAssignerSupplier;
import org.apache.flink.api.common.eventtime.WatermarkGenerator;
import org.apache.flink.api.common.eventtime.WatermarkGeneratorSupplier;
import org.apache.flink.api.common.eventtime.WatermarkStrategy;
import org.apache.flink.api.common.functions.AggregateFunction;
import org.apache.flink.api.common.functions.CoGroupFunction;
import org.apache.flink.api.common.functions.FilterFunction;
import org.apache.flink.api.common.functions.MapFunction;
import org.apache.flink.api.common.functions.OpenContext;
import org.apache.flink.api.common.state.ListState;
import org.apache.flink.api.common.state.ListStateDescriptor;
import org.apache.flink.api.common.state.ValueState;
import org.apache.flink.api.common.state.ValueStateDescriptor;
import org.apache.flink.api.common.typeinfo.TypeInformation;
import org.apache.flink.api.common.typeinfo.Types;
import org.apache.flink.api.java.functions.KeySelector;
import org.apache.flink.api.java.tuple.Tuple;
import org.apache.flink.api.java.tuple.Tuple2;
import org.apache.flink.api.java.tuple.Tuple3;
import org.apache.flink.api.java.tuple.Tuple4;
import org.apache.flink.api.java.tuple.Tuple5;
import org.apache.flink.api.java.typeutils.TupleTypeInfo;
import org.apache.flink.configuration.Configuration;
import org.apache.flink.shaded.jackson2.com.fasterxml.jackson.databind.ObjectMapper;
import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.datastream.KeyedStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.KeyedProcessFunction;
import org.apache.flink.streaming.api.functions.co.KeyedCoProcessFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.RichSinkFunction;
import org.apache.flink.streaming.api.functions.sink.legacy.SinkFunction;
import org.apache.flink.streaming.api.functions.windowing.AllWindowFunction;
import org.apache.flink.streaming.api.functions.windowing.WindowFunction;
import org.apache.flink.streaming.api.windowing.assigners.EventTimeSessionWindows;
import org.apache.flink.streaming.api.windowing.assigners.SlidingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.TumblingEventTimeWindows;
import org.apache.flink.streaming.api.windowing.assigners.WindowAssigner;
import org.apache.flink.streaming.api.windowing.windows.TimeWindow;
import org.apache.flink.streaming.api.windowing.windows.Window;
import org.apache.flink.table.api.EnvironmentSettings;
import org.apache.flink.table.api.Schema;
import org.apache.flink.table.api.bridge.java.StreamTableEnvironment;
import org.apache.flink.table.api.bridge.java.internal.StreamTableEnvironmentImpl;
import org.apache.flink.table.data.RowData;
import org.apache.flink.table.data.StringData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.functions.ScalarFunction;
import org.apache.flink.types.Row;
import org.apache.flink.types.RowKind;
import org.apache.flink.util.Collector;

/**
 * The workloads of the streaming suite on Flink, in one JVM: each line of the input is a JSON object
 * that says what to run; a line of JSON answers it. Written for a compiler without generics and
 * lambdas (Janino).
 *
 * A job's time and processor time count from the first instance of a source to the last of the sink.
 */
public class FlinkQueries {
    static final ObjectMapper JSON = new ObjectMapper();
    static final AtomicLong BEGIN_NS = new AtomicLong();
    static final AtomicLong ROWS = new AtomicLong();
    static final AtomicLong TOTAL = new AtomicLong();
    static final double[] FRACTIONS = new double[1];
    static volatile long beginCpuNs;
    static volatile long endNs;
    static volatile long endCpuNs;

    static long processCpuNs() {
        return ((com.sun.management.OperatingSystemMXBean)
            ManagementFactory.getOperatingSystemMXBean()).getProcessCpuTime();
    }

    /** The first instance of a source that runs begins the measurement. */
    static void begin() {
        if (BEGIN_NS.compareAndSet(0, System.nanoTime())) {
            beginCpuNs = processCpuNs();
        }
    }

    static Tuple2 pair(Object first, Object second) {
        return new Tuple2(first, second);
    }

    // --- the results ---------------------------------------------------------------------------

    /** Counts the results, and adds up one of their fields; rows that are retracted count back. */
    public static class Tally extends RichSinkFunction {
        final String field;
        final int place;
        long rows;
        long total;
        double fractions;

        public Tally(String field, int place) {
            this.field = field;
            this.place = place;
        }

        public void invoke(Object value, SinkFunction.Context context) {
            Object found = value instanceof Row
                ? ((Row) value).getField(field) : ((Tuple) value).getField(place);
            boolean retracts = value instanceof Row
                && (((Row) value).getKind() == RowKind.UPDATE_BEFORE
                    || ((Row) value).getKind() == RowKind.DELETE);
            int sign = retracts ? -1 : 1;
            rows += sign;
            if (found instanceof Double) {
                fractions += sign * ((Double) found).doubleValue();
            } else {
                total += sign * ((Long) found).longValue();
            }
        }

        public void close() {
            ROWS.addAndGet(rows);
            TOTAL.addAndGet(total);
            synchronized (FRACTIONS) {
                FRACTIONS[0] += fractions;
            }
            rows = 0;
            total = 0;
            fractions = 0;
            endNs = System.nanoTime();
            endCpuNs = processCpuNs();
        }
    }

    // --- DataStream ----------------------------------------------------------------------------

    /** Two whole numbers of a row. */
    public static class Numbers implements MapFunction {
        final int first;
        final int second;

        public Numbers(int first, int second) {
            this.first = first;
            this.second = second;
        }

        public Object map(Object value) {
            RowData row = (RowData) value;
            return pair(Long.valueOf(row.getLong(first)), Long.valueOf(row.getLong(second)));
        }
    }

    /** Event time from a column, rows being out of order within a bound. */
    public static class Times implements WatermarkStrategy, TimestampAssigner {
        final int place;
        final int boundMs;

        public Times(int place, int boundMs) {
            this.place = place;
            this.boundMs = boundMs;
        }

        public long extractTimestamp(Object value, long before) {
            return ((RowData) value).getTimestamp(place, 3).getMillisecond();
        }

        public TimestampAssigner createTimestampAssigner(TimestampAssignerSupplier.Context context) {
            return this;
        }

        public WatermarkGenerator createWatermarkGenerator(WatermarkGeneratorSupplier.Context context) {
            return new BoundedOutOfOrdernessWatermarks(Duration.ofMillis(boundMs));
        }
    }

    public static class Field implements KeySelector {
        final int place;

        public Field(int place) {
            this.place = place;
        }

        public Object getKey(Object value) {
            return ((Tuple) value).getField(place);
        }
    }

    public static class Spent extends KeyedProcessFunction {
        ValueState bids;
        ValueState spent;

        public void open(OpenContext context) {
            bids = getRuntimeContext().getState(new ValueStateDescriptor("bids", Types.LONG));
            spent = getRuntimeContext().getState(new ValueStateDescriptor("spent", Types.LONG));
        }

        public void processElement(
                Object value, KeyedProcessFunction.Context context, Collector out)
                throws Exception {
            Tuple2 bid = (Tuple2) value;
            long count = bids.value() == null ? 1L : ((Long) bids.value()).longValue() + 1L;
            long sum = ((Long) bid.f1).longValue();
            if (spent.value() != null) {
                sum += ((Long) spent.value()).longValue();
            }
            bids.update(Long.valueOf(count));
            spent.update(Long.valueOf(sum));
            out.collect(new Tuple3(bid.f0, Long.valueOf(count), Long.valueOf(sum)));
        }
    }

    public static class Count implements AggregateFunction {
        public Object createAccumulator() {
            return Long.valueOf(0L);
        }

        public Object add(Object value, Object count) {
            return Long.valueOf(((Long) count).longValue() + 1L);
        }

        public Object getResult(Object count) {
            return count;
        }

        public Object merge(Object one, Object other) {
            return Long.valueOf(((Long) one).longValue() + ((Long) other).longValue());
        }
    }

    /** (key, start of the window, count). */
    public static class Counted implements WindowFunction {
        public void apply(Object key, Window window, Iterable counts, Collector out) {
            Long start = Long.valueOf(((TimeWindow) window).getStart());
            out.collect(new Tuple3(key, start, counts.iterator().next()));
        }
    }

    /** Keeps the tuples with the highest value of a field. */
    public static class Highest implements AggregateFunction {
        final int place;

        public Highest(int place) {
            this.place = place;
        }

        public Object createAccumulator() {
            return new ArrayList();
        }

        public Object add(Object value, Object kept) {
            List best = (List) kept;
            if (!best.isEmpty()) {
                long highest = ((Long) ((Tuple) best.get(0)).getField(place)).longValue();
                long one = ((Long) ((Tuple) value).getField(place)).longValue();
                if (one < highest) {
                    return best;
                }
                if (one > highest) {
                    best.clear();
                }
            }
            best.add(value);
            return best;
        }

        public Object getResult(Object kept) {
            return kept;
        }

        public Object merge(Object one, Object other) {
            for (Iterator values = ((List) other).iterator(); values.hasNext();) {
                one = add(values.next(), one);
            }
            return one;
        }
    }

    /** Emits the tuples that `Highest` kept. */
    public static class Each implements WindowFunction, AllWindowFunction {
        public void apply(Object key, Window window, Iterable kept, Collector out) {
            apply(window, kept, out);
        }

        public void apply(Window window, Iterable kept, Collector out) {
            for (Iterator values = ((List) kept.iterator().next()).iterator(); values.hasNext();) {
                out.collect(values.next());
            }
        }
    }

    /** (auction, price, bidder, time, extra), in the order of the file's columns. */
    public static class Bid implements MapFunction {
        public Object map(Object value) {
            RowData row = (RowData) value;
            return new Tuple5(
                Long.valueOf(row.getLong(0)),
                Long.valueOf(row.getLong(2)),
                Long.valueOf(row.getLong(3)),
                Long.valueOf(row.getTimestamp(1, 3).getMillisecond()),
                row.getString(4).toString());
        }
    }

    /** (auction, bidder, price, time, extra) of `RowData` (auction, time, bidder, price, extra). */
    public static class BidAsIs implements MapFunction {
        final double rate;

        public BidAsIs(double rate) {
            this.rate = rate;
        }

        public Object map(Object value) {
            RowData row = (RowData) value;
            long price = row.getLong(3);
            return new Tuple5(
                Long.valueOf(row.getLong(0)),
                Long.valueOf(row.getLong(2)),
                rate == 1.0 ? (Object) Long.valueOf(price) : (Object) Double.valueOf(price * rate),
                row.getTimestamp(1, 3),
                row.getString(4));
        }
    }

    public static class SomeAuctions implements FilterFunction {
        public boolean filter(Object value) {
            return ((RowData) value).getLong(0) % 123 == 0;
        }
    }

    /** (auction, time, price) of a bid; (auction, time, expires, category) of an auction. */
    public static class TimesAndNumbers implements MapFunction {
        final boolean ofAuction;

        public TimesAndNumbers(boolean ofAuction) {
            this.ofAuction = ofAuction;
        }

        public Object map(Object value) {
            RowData row = (RowData) value;
            Long id = Long.valueOf(row.getLong(0));
            Long time = Long.valueOf(row.getTimestamp(1, 3).getMillisecond());
            if (!ofAuction) {
                return new Tuple3(id, time, Long.valueOf(row.getLong(2)));
            }
            Long expires = Long.valueOf(row.getTimestamp(2, 3).getMillisecond());
            return new Tuple4(id, time, expires, Long.valueOf(row.getLong(3)));
        }
    }

    /** (category, highest bid) of each auction, once no row follows. */
    public static class HighestBids extends KeyedCoProcessFunction {
        ValueState auction;
        ValueState highest;
        ListState early;

        public void open(OpenContext context) {
            auction = getRuntimeContext().getState(new ValueStateDescriptor("auction", AUCTION));
            highest = getRuntimeContext().getState(new ValueStateDescriptor("highest", Types.LONG));
            early = getRuntimeContext().getListState(
                new ListStateDescriptor("early", counts(Types.LONG)));
        }

        public void processElement1(
                Object value, KeyedCoProcessFunction.Context context, Collector out)
                throws Exception {
            Tuple3 bid = (Tuple3) value;
            Tuple4 known = (Tuple4) auction.value();
            if (known == null) {
                early.add(bid);
            } else {
                take(bid, known);
            }
        }

        public void processElement2(
                Object value, KeyedCoProcessFunction.Context context, Collector out)
                throws Exception {
            Tuple4 known = (Tuple4) value;
            auction.update(known);
            for (Iterator bids = ((Iterable) early.get()).iterator(); bids.hasNext();) {
                take((Tuple3) bids.next(), known);
            }
            early.clear();
            context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
        }

        void take(Tuple3 bid, Tuple4 known) throws Exception {
            long time = ((Long) bid.f1).longValue();
            if (time < ((Long) known.f1).longValue() || time > ((Long) known.f2).longValue()) {
                return;
            }
            Long before = (Long) highest.value();
            if (before == null || before.longValue() < ((Long) bid.f2).longValue()) {
                highest.update(bid.f2);
            }
        }

        public void onTimer(
                long time, KeyedCoProcessFunction.OnTimerContext context, Collector out)
                throws Exception {
            if (highest.value() != null) {
                out.collect(pair(((Tuple4) auction.value()).f3, highest.value()));
            }
        }
    }

    /** (category, average), once no row follows. */
    public static class Averages extends KeyedProcessFunction {
        ValueState sum;
        ValueState count;

        public void open(OpenContext context) {
            sum = getRuntimeContext().getState(new ValueStateDescriptor("sum", Types.LONG));
            count = getRuntimeContext().getState(new ValueStateDescriptor("count", Types.LONG));
        }

        public void processElement(
                Object value, KeyedProcessFunction.Context context, Collector out)
                throws Exception {
            long before = sum.value() == null ? 0L : ((Long) sum.value()).longValue();
            long rows = count.value() == null ? 0L : ((Long) count.value()).longValue();
            sum.update(Long.valueOf(before + ((Long) ((Tuple2) value).f1).longValue()));
            count.update(Long.valueOf(rows + 1L));
            context.timerService().registerEventTimeTimer(Long.MAX_VALUE);
        }

        public void onTimer(long time, KeyedProcessFunction.OnTimerContext context, Collector out)
                throws Exception {
            double average = ((Long) sum.value()).doubleValue() / ((Long) count.value()).longValue();
            out.collect(pair(context.getCurrentKey(), Double.valueOf(average)));
        }
    }

    public static class Part implements KeySelector {
        public Object getKey(Object value) {
            return Long.valueOf(((Long) ((Tuple5) value).f2).longValue() & 15L);
        }
    }

    public static class Person implements MapFunction {
        public Object map(Object value) {
            RowData row = (RowData) value;
            return pair(Long.valueOf(row.getLong(0)), row.getString(2).toString());
        }
    }

    /** (id, name) of each person who is a seller in the same window. */
    public static class NewSellers implements CoGroupFunction {
        public void coGroup(Iterable persons, Iterable sellers, Collector out) {
            if (sellers.iterator().hasNext()) {
                for (Iterator found = persons.iterator(); found.hasNext();) {
                    out.collect(found.next());
                }
            }
        }
    }

    public static class Views implements FilterFunction {
        static final StringData VIEW = BinaryStringData.fromString("view");

        public boolean filter(Object value) {
            return ((RowData) value).getString(1).equals(VIEW);
        }
    }

    /** Campaigns by advertisements. */
    public static class Campaigns implements MapFunction {
        final HashMap campaigns;

        public Campaigns(Map campaigns) {
            this.campaigns = new HashMap(campaigns);
        }

        public Object map(Object value) {
            String ad = ((RowData) value).getString(0).toString();
            return pair(campaigns.get(ad), Long.valueOf(1L));
        }
    }

    static final TypeInformation AUCTION = new TupleTypeInfo(
        new TypeInformation[] {Types.LONG, Types.LONG, Types.LONG, Types.LONG});
    static final TypeInformation ANY_BID = Types.GENERIC(Tuple5.class);
    static final TypeInformation NUMBER_AND_FRACTION =
        new TupleTypeInfo(new TypeInformation[] {Types.LONG, Types.DOUBLE});
    static final TypeInformation PAIR =
        new TupleTypeInfo(new TypeInformation[] {Types.LONG, Types.LONG});
    static final TypeInformation TEXT_AND_NUMBER =
        new TupleTypeInfo(new TypeInformation[] {Types.STRING, Types.LONG});
    static final TypeInformation NUMBER_AND_TEXT =
        new TupleTypeInfo(new TypeInformation[] {Types.LONG, Types.STRING});
    static final TypeInformation BID = new TupleTypeInfo(
        new TypeInformation[] {Types.LONG, Types.LONG, Types.LONG, Types.LONG, Types.STRING});

    static TypeInformation counts(TypeInformation key) {
        return new TupleTypeInfo(new TypeInformation[] {key, Types.LONG, Types.LONG});
    }

    static DataStream timed(DataStream rows, int time, int boundMs) {
        return rows.assignTimestampsAndWatermarks(new Times(time, boundMs));
    }

    static DataStream counted(DataStream tuples, WindowAssigner windows, TypeInformation key) {
        return tuples.keyBy(new Field(0), key)
            .window(windows)
            .aggregate(new Count(), new Counted(), Types.LONG, counts(key));
    }

    /** The workload as a DataStream of tuples. Columns: the key, the event time, then the others. */
    static DataStream stream(StreamExecutionEnvironment environment, Map job) {
        String program = (String) job.get("program");
        int boundMs = ((Integer) job.get("max_out_of_order_ms")).intValue();
        Duration size = Duration.ofSeconds(10);
        Duration slide = Duration.ofSeconds(2);
        if (program.equals("spent")) {
            return FlinkSources.stream(environment, job, "bids")
                .map(new Numbers(0, 1), PAIR)
                .keyBy(new Field(0), Types.LONG)
                .process(new Spent(), counts(Types.LONG));
        }
        if (program.equals("yahoo")) {
            DataStream views = timed(FlinkSources.stream(environment, job, "events"), 2, boundMs)
                .filter(new Views())
                .map(new Campaigns((Map) job.get("campaigns")), TEXT_AND_NUMBER);
            return counted(views, TumblingEventTimeWindows.of(size), Types.STRING);
        }
        if (program.equals("new sellers")) {
            DataStream persons = timed(FlinkSources.stream(environment, job, "persons"), 1, boundMs)
                .map(new Person(), NUMBER_AND_TEXT);
            DataStream sellers = timed(FlinkSources.stream(environment, job, "auctions"), 1, boundMs)
                .map(new Numbers(0, 0), PAIR);
            return persons.coGroup(sellers)
                .where(new Field(0), Types.LONG)
                .equalTo(new Field(0), Types.LONG)
                .window(TumblingEventTimeWindows.of(size))
                .apply(new NewSellers(), NUMBER_AND_TEXT);
        }
        DataStream bids = timed(FlinkSources.stream(environment, job, "bids"), 1, boundMs);
        if (program.equals("bids")) {
            return bids.map(new BidAsIs(1.0), ANY_BID);
        }
        if (program.equals("euros")) {
            return bids.map(new BidAsIs(0.908), ANY_BID);
        }
        if (program.equals("some")) {
            return bids.filter(new SomeAuctions()).map(new Numbers(0, 2), PAIR);
        }
        if (program.equals("averages")) {
            DataStream auctions =
                timed(FlinkSources.stream(environment, job, "auctions_of_bids"), 1, boundMs)
                    .map(new TimesAndNumbers(true), AUCTION);
            return bids.map(new TimesAndNumbers(false), counts(Types.LONG))
                .connect(auctions)
                .keyBy(new Field(0), new Field(0), Types.LONG)
                .process(new HighestBids(), PAIR)
                .keyBy(new Field(0), Types.LONG)
                .process(new Averages(), NUMBER_AND_FRACTION);
        }
        if (program.equals("highest bid")) {
            return bids.map(new Bid(), BID)
                .keyBy(new Part(), Types.LONG)
                .window(TumblingEventTimeWindows.of(size))
                .aggregate(new Highest(1), new Each(), Types.LIST(BID), BID)
                .windowAll(TumblingEventTimeWindows.of(size))
                .aggregate(new Highest(1), new Each(), Types.LIST(BID), BID);
        }
        DataStream keyed = bids.map(new Numbers(0, 0), PAIR);
        if (program.equals("tumbling")) {
            return counted(keyed, TumblingEventTimeWindows.of(size), Types.LONG);
        }
        if (program.equals("sessions")) {
            return counted(keyed, EventTimeSessionWindows.withGap(size), Types.LONG);
        }
        DataStream hopping =
            counted(keyed, SlidingEventTimeWindows.of(size, slide), Types.LONG);
        if (program.equals("hopping")) {
            return hopping;
        }
        return hopping.keyBy(new Field(1), Types.LONG)
            .window(TumblingEventTimeWindows.of(slide))
            .aggregate(
                new Highest(2), new Each(), Types.LIST(counts(Types.LONG)), counts(Types.LONG));
    }

    // --- SQL -----------------------------------------------------------------------------------

    /** Campaigns by advertisements. */
    public static class CampaignOf extends ScalarFunction {
        final HashMap campaigns;

        public CampaignOf(Map campaigns) {
            this.campaigns = new HashMap(campaigns);
        }

        public String eval(String ad) {
            return (String) campaigns.get(ad);
        }
    }

    /** The workload's query, over a view of each stream. */
    static DataStream query(StreamExecutionEnvironment environment, Map job) {
        // The interface's own `create` is static, which this compiler cannot call.
        StreamTableEnvironment tables = StreamTableEnvironmentImpl.create(
            environment, EnvironmentSettings.newInstance().inStreamingMode().build());
        tables.getConfig().set("table.local-time-zone", "UTC");
        tables.getConfig().set("table.exec.mini-batch.enabled", "true");
        tables.getConfig().set("table.exec.mini-batch.allow-latency", "2 s");
        tables.getConfig().set("table.exec.mini-batch.size", "50000");
        int boundMs = ((Integer) job.get("max_out_of_order_ms")).intValue();
        for (Iterator names = ((Map) job.get("streams")).keySet().iterator(); names.hasNext();) {
            String name = (String) names.next();
            Map columns = (Map) ((Map) job.get("streams")).get(name);
            Schema.Builder schema = Schema.newBuilder();
            for (Iterator fields = columns.keySet().iterator(); fields.hasNext();) {
                String field = (String) fields.next();
                schema.column(field, (String) columns.get(field));
                if (field.equals(((Map) job.get("times")).get(name))) {
                    schema.watermark(
                        field, field + " - INTERVAL '" + boundMs / 1000 + "' SECOND");
                }
            }
            tables.createTemporaryView(name, FlinkSources.stream(environment, job, name), schema.build());
        }
        if (job.get("campaigns") != null) {
            tables.createTemporarySystemFunction(
                "campaign_of", new CampaignOf((Map) job.get("campaigns")));
            tables.createTemporaryView("ad_views", tables.sqlQuery(
                "SELECT campaign_of(ad_id) AS campaign_id, event_time FROM events"
                + " WHERE event_type = 'view'"));
        }
        return tables.toChangelogStream(tables.sqlQuery((String) job.get("sql")));
    }

    // --- running -------------------------------------------------------------------------------

    static Map run(Map job) throws Exception {
        int workers = ((Integer) job.get("workers")).intValue();
        Configuration settings = new Configuration();
        settings.setString("taskmanager.numberOfTaskSlots", String.valueOf(workers));
        settings.setString("taskmanager.memory.network.min", "128m");
        settings.setString("taskmanager.memory.network.max", "128m");
        settings.setString("taskmanager.memory.managed.size", "512m");
        settings.setString("pekko.ask.timeout", "120 s");
        StreamExecutionEnvironment environment =
            StreamExecutionEnvironment.createLocalEnvironment(workers, settings);
        environment.getConfig().enableObjectReuse();
        BEGIN_NS.set(0);
        ROWS.set(0);
        TOTAL.set(0);
        FRACTIONS[0] = 0;
        DataStream results =
            job.get("sql") != null ? query(environment, job) : stream(environment, job);
        int place = ((Integer) job.get("place")).intValue();
        results.addSink(new Tally((String) job.get("total"), place));
        environment.execute("streaming");
        Map answer = new HashMap();
        answer.put("seconds", Double.valueOf((endNs - BEGIN_NS.get()) / 1e9));
        answer.put("cpu_s", Double.valueOf((endCpuNs - beginCpuNs) / 1e9));
        answer.put("rows", Long.valueOf(ROWS.get()));
        answer.put("total", Long.valueOf(TOTAL.get() + (long) FRACTIONS[0]));
        return answer;
    }

    public static void main(String[] arguments) throws Exception {
        BufferedReader jobs = new BufferedReader(new InputStreamReader(System.in, "UTF-8"));
        for (String line = jobs.readLine(); line != null; line = jobs.readLine()) {
            Map answer = run((Map) JSON.readValue(line, Map.class));
            System.out.println(JSON.writeValueAsString(answer));
            System.out.flush();
        }
        System.exit(0);
    }
}
