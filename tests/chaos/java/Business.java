import java.net.URI;
import java.net.URLDecoder;
import java.nio.charset.StandardCharsets;
import java.sql.Connection;
import java.sql.DriverManager;
import java.sql.PreparedStatement;
import java.sql.ResultSet;
import java.sql.SQLException;
import java.util.Properties;
import java.util.concurrent.BlockingDeque;
import java.util.concurrent.LinkedBlockingDeque;
import java.util.zip.CRC32;

/** The attempts of business.py, by which any producer answers, whichever began them. Each statement commits. */
final class Business {
    private static final int PING_S_MAX = 5;

    private final BlockingDeque<Connection> idle = new LinkedBlockingDeque<>();
    private final String url;
    private final Properties properties = new Properties();
    private final double giveUpS;

    Business(String told, double giveUpS) {
        URI at = URI.create(told);
        url = "jdbc:postgresql://" + at.getHost() + ":" + at.getPort() + at.getPath();
        String[] user = at.getRawUserInfo().split(":", 2);
        properties.setProperty("user", URLDecoder.decode(user[0], StandardCharsets.UTF_8));
        if (user.length > 1) {
            properties.setProperty("password", URLDecoder.decode(user[1], StandardCharsets.UTF_8));
        }
        properties.setProperty("sslmode", "disable");
        properties.setProperty("connectTimeout", "5"); // it notices soon when its database is gone
        properties.setProperty("socketTimeout", "10");
        properties.setProperty("options", "-c statement_timeout=5000");
        this.giveUpS = giveUpS;
    }

    /** Record an attempt, which must be on disk before the half message is sent. */
    void begin(String serial) throws SQLException {
        with(connection -> update(connection, "insert into attempt (serial) values (?)", serial));
    }

    /** Run the local transaction. False: a checker has given it up. */
    boolean finish(String serial, boolean isCommit) throws SQLException {
        return with(connection -> update(connection, "update attempt set state = '" + (isCommit ? "done" : "given up")
            + "' where serial = ? and state = 'running'", serial)) == 1;
    }

    /** Give up an attempt that has taken too long. "commit", "rollback" or "unknown". */
    String check(String serial) throws SQLException {
        String state = with(connection -> {
            update(connection, "update attempt set state = 'given up' where serial = ? and state = 'running' "
                + "and begun_at < now() - make_interval(secs => " + giveUpS + ")", serial);
            try (PreparedStatement select = connection.prepareStatement("select state from attempt where serial = ?")) {
                select.setString(1, serial);
                ResultSet found = select.executeQuery();
                found.next();
                return found.getString(1);
            }
        });
        return state.equals("running") ? "unknown" : state.equals("done") ? "commit" : "rollback";
    }

    /** Return true if a handler fails the message on its first run: some at first, and a few always. */
    static boolean isDisliked(byte[] body, int attempt) {
        CRC32 sum = new CRC32();
        sum.update(body);
        long luck = sum.getValue() % 500;
        return luck == 0 || (luck < 15 && attempt <= luck % 3 + 1);
    }

    private interface Work<T> {
        T of(Connection connection) throws SQLException;
    }

    private <T> T with(Work<T> work) throws SQLException {
        Connection connection = idle.pollFirst();
        if (connection != null && !connection.isValid(PING_S_MAX)) {
            connection.close();
            connection = null;
        }
        if (connection == null) {
            connection = DriverManager.getConnection(url, properties);
        }
        try {
            T result = work.of(connection);
            idle.addFirst(connection);
            return result;
        } catch (SQLException failure) {
            connection.close();
            throw failure;
        }
    }

    private static int update(Connection connection, String statement, String serial) throws SQLException {
        try (PreparedStatement update = connection.prepareStatement(statement)) {
            update.setString(1, serial);
            return update.executeUpdate();
        }
    }
}
