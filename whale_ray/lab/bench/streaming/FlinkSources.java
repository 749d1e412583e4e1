import java.util.ArrayList;
import java.util.List;
import java.util.Map;

import org.apache.flink.streaming.api.datastream.DataStream;
import org.apache.flink.streaming.api.environment.StreamExecutionEnvironment;
import org.apache.flink.streaming.api.functions.source.legacy.RichParallelSourceFunction;
import org.apache.flink.streaming.api.functions.source.legacy.SourceFunction;
import org.apache.flink.table.data.GenericRowData;
import org.apache.flink.table.data.TimestampData;
import org.apache.flink.table.data.binary.BinaryStringData;
import org.apache.flink.table.runtime.typeutils.InternalTypeInfo;
import org.apache.flink.table.types.logical.BigIntType;
import org.apache.flink.table.types.logical.DoubleType;
import org.apache.flink.table.types.logical.LogicalType;
import org.apache.flink.table.types.logical.RowType;
import org.apache.flink.table.types.logical.TimestampType;
import org.apache.flink.table.types.logical.VarCharType;

import org.apache.parquet.column.ColumnDescriptor;
import org.apache.parquet.column.ColumnReader;
import org.apache.parquet.column.impl.ColumnReadStoreImpl;
import org.apache.parquet.column.page.PageReadStore;
import org.apache.parquet.example.data.simple.convert.GroupRecordConverter;
import org.apache.parquet.hadoop.ParquetFileReader;
import org.apache.parquet.hadoop.util.HadoopInputFile;
import org.apache.parquet.schema.MessageType;

/**
 * The input of FlinkQueries: numbers, texts, and times in microseconds, as rows of Flink's tables. A
 * stream is a Parquet file, of which every instance reads its share of the row groups, column by
 * column; or a file for each column (none of fractions), of which it maps its share of the blocks
 * into memory, `mapped` with texts as they are, `coded` with texts as codes.
 */
public class FlinkSources {
    static final int NUMBER = 0;
    static final int TEXT = 1;
    static final int TIME = 2;
    static final int FRACTION = 3;

    static int kind(String type) {
        if (type.equals("DOUBLE")) {
            return FRACTION;
        }
        return type.equals("BIGINT") ? NUMBER : type.equals("STRING") ? TEXT : TIME;
    }

    static LogicalType type(String name) {
        if (name.equals("BIGINT")) {
            return new BigIntType();
        }
        if (name.equals("DOUBLE")) {
            return new DoubleType();
        }
        return name.equals("STRING") ? (LogicalType) new VarCharType(VarCharType.MAX_LENGTH)
            : (LogicalType) new TimestampType(3);
    }

    /** A stream of the job's folder; `columns` has types by names. */
    static DataStream stream(StreamExecutionEnvironment environment, Map job, String stream) {
        Map columns = (Map) ((Map) job.get("streams")).get(stream);
        String[] names = (String[]) columns.keySet().toArray(new String[0]);
        String[] types = (String[]) columns.values().toArray(new String[0]);
        LogicalType[] logical = new LogicalType[names.length];
        int[] kinds = new int[names.length];
        for (int i = 0; i < names.length; i++) {
            logical[i] = type(types[i]);
            kinds[i] = kind(types[i]);
        }
        String path = job.get("folder") + "/" + stream;
        Object files = job.get("files");
        Rows rows = files.equals("parquet")
            ? (Rows) new ParquetRows(path + ".parquet", names, kinds)
            : (Rows) new MappedRows(path, names, kinds, files.equals("coded"));
        return environment.addSource(
            rows, stream, InternalTypeInfo.of(RowType.of(logical, names)));
    }

    /** Columns of a stream as rows; each instance reads its share. */
    public abstract static class Rows extends RichParallelSourceFunction {
        final String path;
        final String[] names;
        final int[] kinds;
        volatile boolean running = true;

        Rows(String path, String[] names, int[] kinds) {
            this.path = path;
            this.names = names;
            this.kinds = kinds;
        }

        abstract void read(int instance, int instances, SourceFunction.SourceContext context)
            throws Exception;

        public void run(SourceFunction.SourceContext context) throws Exception {
            FlinkQueries.begin();
            read(
                getRuntimeContext().getTaskInfo().getIndexOfThisSubtask(),
                getRuntimeContext().getTaskInfo().getNumberOfParallelSubtasks(),
                context);
        }

        public void cancel() {
            running = false;
        }
    }

    /** Reads columns of a Parquet file. */
    public static class ParquetRows extends Rows {
        public ParquetRows(String path, String[] names, int[] kinds) {
            super(path, names, kinds);
        }

        void read(int instance, int instances, SourceFunction.SourceContext context)
                throws Exception {
            ParquetFileReader reader = ParquetFileReader.open(HadoopInputFile.fromPath(
                new org.apache.hadoop.fs.Path(path), new org.apache.hadoop.conf.Configuration()));
            MessageType all = reader.getFileMetaData().getSchema();
            List fields = new ArrayList();
            for (int i = 0; i < names.length; i++) {
                fields.add(all.getType(names[i]));
            }
            MessageType wanted = new MessageType("wanted", fields);
            reader.setRequestedSchema(wanted);
            for (int group = 0; running && group < reader.getRowGroups().size(); group++) {
                if (group % instances != instance) {
                    reader.skipNextRowGroup();
                } else {
                    emit(reader.readNextRowGroup(), wanted, context);
                }
            }
            reader.close();
        }

        void emit(PageReadStore pages, MessageType wanted, SourceFunction.SourceContext context) {
            ColumnReadStoreImpl store = new ColumnReadStoreImpl(
                pages, new GroupRecordConverter(wanted).getRootConverter(), wanted, "");
            ColumnReader[] columns = new ColumnReader[names.length];
            for (int i = 0; i < names.length; i++) {
                columns[i] =
                    store.getColumnReader((ColumnDescriptor) wanted.getColumns().get(i));
            }
            long rows = pages.getRowCount();
            for (long row = 0; running && row < rows; row++) {
                GenericRowData made = new GenericRowData(columns.length);
                for (int i = 0; i < columns.length; i++) {
                    ColumnReader column = columns[i];
                    if (kinds[i] == NUMBER) {
                        made.setField(i, Long.valueOf(column.getLong()));
                    } else if (kinds[i] == FRACTION) {
                        made.setField(i, Double.valueOf(column.getDouble()));
                    } else if (kinds[i] == TEXT) {
                        made.setField(
                            i, BinaryStringData.fromBytes(column.getBinary().getBytes()));
                    } else {
                        made.setField(i, TimestampData.fromEpochMillis(column.getLong() / 1000));
                    }
                    column.consume();
                }
                context.collect(made);
            }
        }
    }

    /** Maps the files of columns (FlinkColumn), block by block. */
    public static class MappedRows extends Rows {
        static final int BLOCK_ROWS = 65536;

        final boolean coded;

        public MappedRows(String path, String[] names, int[] kinds, boolean coded) {
            super(path, names, kinds);
            this.coded = coded;
        }

        void read(int instance, int instances, SourceFunction.SourceContext context)
                throws Exception {
            FlinkColumn[] columns = new FlinkColumn[names.length];
            for (int i = 0; i < names.length; i++) {
                columns[i] = new FlinkColumn(path + "." + names[i], kinds[i], coded);
            }
            long rows = columns[0].rows();
            long step = (long) instances * BLOCK_ROWS;
            for (long first = (long) instance * BLOCK_ROWS; running && first < rows; first += step) {
                emit(columns, first, (int) Math.min(BLOCK_ROWS, rows - first), context);
            }
            for (int i = 0; i < names.length; i++) {
                columns[i].close();
            }
        }

        void emit(
                FlinkColumn[] columns, long first, int rows, SourceFunction.SourceContext context)
                throws Exception {
            for (int i = 0; i < columns.length; i++) {
                columns[i].map(first, rows);
            }
            for (int row = 0; running && row < rows; row++) {
                GenericRowData made = new GenericRowData(columns.length);
                for (int i = 0; i < columns.length; i++) {
                    made.setField(i, columns[i].next());
                }
                context.collect(made);
            }
        }
    }
}
